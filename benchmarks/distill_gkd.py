"""A distillation step beside that of TRL's GKD trainer: same models, same rows, same optimiser, one thread.

The 135M chat model as teacher, twenty of its thirty layers, evenly spaced, as student; rows of text without padding, all tokens
scored, float32, AdamW, gradients clipped. TRL has a divergence alone (JSD, β = 0.5, τ = 1, off-policy); LADR runs the same, and
then its whole objective (cross-entropy, KL, attention of the last layer), which is more work. Each form is a process of its
own, in turns; the first step of each is not counted. Memory is the most resident of the process.

TRL is no dependency of LADR: put it with what it imports into a directory (see docs/benchmarks.md), named in LADR_TRL.
Without it its row is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.apart import apart
from benchmarks.distill_loss import save_models
from benchmarks.report import Report, Spread, Table
from services.distiller.objective.batch import Batch
from services.distiller.objective.distillation import Distillation
from services.distiller.spec import Objective
from services.distiller.students.depth import cut, evenly_spaced

GKD, SAME, WHOLE = "TRL GKD", "LADR, the same divergence", "LADR, the whole objective"
OBJECTIVES = {
    SAME: Objective(task_weight=0, attention_weight=0, divergence="jsd", kl_weight=1, temperature=1),
    WHOLE: Objective(),
}
ROWS, WIDTH = 4, 256
_RATE, _CLIP = 1e-4, 1.0


def run(quick: bool) -> Report:
    """Measure, in about ten minutes. Quick: a tiny model of random weights, short rows."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rounds, steps, width = (1, 2, 32) if quick else (3, 4, WIDTH)
    table = Table(
        f"Steps of {ROWS} × {width} tokens", ("form", "tokens/s", "speed ÷ TRL", "peak memory [MB]", "memory ÷ TRL")
    )
    forms = [form for form in (GKD, *OBJECTIVES) if form != GKD or _has_trl()]
    with tempfile.TemporaryDirectory() as name:
        save_models(Path(name), quick)
        found: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
        for _ in range(rounds):
            for form in forms:
                found[form].append(_measure(name, form, steps, width))
    for form, rows in found.items():
        ratios = [
            [row[key] / other[key] for row, other in zip(rows, found[GKD], strict=True)] if GKD in found else []
            for key in ("speed", "peak_mb")
        ]
        table.add(
            form,
            median(row["speed"] for row in rows),
            Spread.of(ratios[0]) if ratios[0] else "–",
            median(row["peak_mb"] for row in rows),
            Spread.of(ratios[1]) if ratios[1] else "–",
        )
    return Report([table])


def _has_trl() -> bool:
    code = "import trl.experimental.gkd"
    return not subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, check=False
    ).returncode


def _environment() -> dict[str, str]:
    paths = [os.environ.get("PYTHONPATH", ""), os.environ.get("LADR_TRL", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def _measure(directory: str, form: str, steps: int, width: int) -> dict[str, float]:
    arguments = (directory, form, str(steps), str(width))
    found: dict[str, float] = apart("benchmarks.distill_gkd", *arguments, environment=_environment())
    return found


def _steps(directory: Path, form: str, steps: int, width: int) -> dict[str, float]:
    """So many steps in this process."""
    torch.set_num_threads(1)
    teacher = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    count = teacher.config.num_hidden_layers
    student = cut(teacher, evenly_spaced(count, max(count * 2 // 3, 1))).train()
    ids = torch.tensor(json.loads((directory / "tokens.json").read_text()))
    rows = ids[: ids.numel() // width * width].reshape(-1, width).repeat(steps * ROWS, 1)[: steps * ROWS]
    times = _gkd(teacher, student, rows, steps, directory) if form == GKD else _ladr(form, teacher, student, rows)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"speed": ROWS * width / median(times[1:]), "peak_mb": int(peak.split()[1]) / 1024}


def _ladr(form: str, teacher: Any, student: Any, rows: Any) -> list[float]:
    distillation = Distillation(student, teacher, OBJECTIVES[form]).train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=_RATE, fused=True)
    times = []
    for ids in rows.split(ROWS):
        began = time.perf_counter()
        distillation(Batch(ids, ids, torch.arange(ids.shape[1]).expand(len(ids), -1))).total.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), _CLIP)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return times


def _gkd(teacher: Any, student: Any, rows: Any, steps: int, directory: Path) -> list[float]:
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]  # no types
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(-time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times[-1] += time.perf_counter()

    def collate(some: list[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.tensor([one["input_ids"] for one in some])
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "attention_mask": torch.ones_like(ids),
            "prompts": ids[:, :1],
            "prompt_attention_mask": torch.ones_like(ids[:, :1]),
        }

    arguments = GKDConfig(
        output_dir=str(directory / "trl"),
        per_device_train_batch_size=ROWS,
        max_steps=steps,
        learning_rate=_RATE,
        max_grad_norm=_CLIP,
        lmbda=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GKDTrainer(
        model=student,
        teacher_model=teacher,
        args=arguments,
        data_collator=collate,
        train_dataset=Dataset(InMemoryTable(pyarrow.table({"input_ids": rows.tolist()})), fingerprint="rows"),
        processing_class=AutoTokenizer.from_pretrained(directory),
        callbacks=[Clock()],
    )
    with _quiet():
        trainer.train()
    return times


@contextmanager
def _quiet() -> Iterator[None]:
    """The trainer prints its losses to standard output, which is ours."""
    told, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = told


if __name__ == "__main__":
    where, what, count, long = sys.argv[1:]
    print(json.dumps(_steps(Path(where), what, int(count), int(long))))
