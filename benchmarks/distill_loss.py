"""A distillation step whose logits are made in chunks, against the naive form that has them whole.

The 135M chat model as teacher, ten of its thirty layers, evenly spaced, as student, packed rows of 512 tokens that are all
scored, fp32, one thread; the whole objective (cross-entropy, KL at τ = 3, attention of the last layer). Both forms run all but
the loss over the vocabulary alike. Each row is a process of its own, and two steps of it, forward and backward: memory is the
most resident over both, less what the two models take; speed is that of the second.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from benchmarks.apart import apart
from benchmarks.report import Report, Table
from services.common.sources import locate
from services.distiller.objective import attention
from services.distiller.objective.batch import IGNORE, Batch, documents
from services.distiller.objective.distillation import Distillation
from services.distiller.objective.kept import queries_and_keys
from services.distiller.spec import Objective
from services.distiller.students.depth import cut, evenly_spaced
from tests.distiller import tiny
from tests.processes import ROOT

NAIVE, CHUNKED, SHORT = "naive", "chunked", "chunked, bf16"
TIME = 512
OBJECTIVE = Objective()


def run(quick: bool) -> Report:
    """Measure, in some minutes and 11 GB. Quick: a tiny model of random weights, short rows."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    table = Table(
        "A step, forward and backward",
        ("tokens", "form", "models [MB]", "over them [MB]", "÷ naive", "speed [tokens/cpu-s]", "loss"),
    )
    with tempfile.TemporaryDirectory() as name:
        save_models(Path(name), quick)
        for rows in (2,) if quick else (2, 8):
            found = {form: _measure(name, form, rows, 64 if quick else TIME) for form in (NAIVE, CHUNKED, SHORT)}
            for form, row in found.items():
                share = row["over_mb"] / max(found[NAIVE]["over_mb"], 1e-9)
                table.add(
                    f"{rows} × {64 if quick else TIME}",
                    form,
                    *(row["models_mb"], row["over_mb"], share, row["per_cpu_s"], f"{row['loss']:.6f}"),
                )
    return Report([table])


def _measure(directory: str, form: str, rows: int, time: int) -> dict[str, float]:
    found: dict[str, float] = apart("benchmarks.distill_loss", directory, form, str(rows), str(time))
    return found


def _step(directory: Path, form: str, rows: int, width: int) -> dict[str, float]:
    """Two steps in this process."""
    torch.set_num_threads(1)
    teacher = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    count = teacher.config.num_hidden_layers
    student = cut(teacher, evenly_spaced(count, max(count // 3, 1))).train()
    ids = torch.tensor(json.loads((directory / "tokens.json").read_text())[: rows * width]).reshape(rows, width)
    batch = Batch(ids, ids, torch.arange(width).expand(rows, -1))
    distillation = Distillation(student, teacher, OBJECTIVE).train()
    models_mb = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most resident is counted from here
    for _ in range(2):
        student.zero_grad()
        began_s = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=form == SHORT):
            loss = _naive(student, teacher, batch) if form == NAIVE else distillation(batch).total
        loss.backward()
        took_s = time.process_time() - began_s
    return {
        "models_mb": models_mb,
        "over_mb": _memory_mb("VmHWM") - models_mb,
        "per_cpu_s": ids.numel() / took_s,
        "loss": loss.item(),
    }


def _naive(student: Any, teacher: Any, batch: Batch) -> Any:
    """The same loss from whole logits."""
    last = [model.config.num_hidden_layers - 1 for model in (student, teacher)]
    options = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
    with torch.no_grad(), queries_and_keys(teacher, last[1:]) as known:
        taught = teacher(**options).logits
    with queries_and_keys(student, last[:1]) as own:
        logits = student(**options).logits
    tau, targets = OBJECTIVE.temperature, batch.targets()
    scored = targets != IGNORE
    task = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    kl = functional.kl_div(  # every position is scored but the last of a row
        functional.log_softmax(logits[:, :-1] / tau, -1), functional.softmax(taught[:, :-1] / tau, -1), reduction="sum"
    )
    far = attention.distance(own[last[0]], known[last[1]], documents(batch.position_ids), scored)
    weighted = OBJECTIVE.task_weight * task + OBJECTIVE.kl_weight * tau**2 * kl + OBJECTIVE.attention_weight * far
    return weighted / scored.sum()


def save_models(directory: Path, quick: bool) -> None:
    """The teacher as safetensors with its tokenizer, and tokens of a text."""
    text = (ROOT / "LICENSE").read_text() * 2
    if quick:
        config = LlamaConfig(
            vocab_size=264,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            bos_token_id=None,
            eos_token_id=None,
        )
        torch.manual_seed(0)
        model, tokenizer = LlamaForCausalLM(config), tiny.tokenizer()
    else:
        where, gguf = locate("", ROOT)
        read = AutoModelForCausalLM.from_pretrained(where, gguf_file=gguf, dtype=torch.float32)
        del read.config.quantization_config  # else save_pretrained refuses
        model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=gguf)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "tokens.json").write_text(json.dumps(tokenizer(text)["input_ids"]))


def _memory_mb(name: str) -> float:
    """A figure of this process in /proc: VmRSS, what is resident; VmHWM, the most that was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(json.dumps(_step(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
