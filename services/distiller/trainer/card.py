"""What lies beside a student's weights, also in 8 bits: a model card, as Hugging Face has it, and the hashes of all files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from services.common.int8.notes import Notes, is_there, read_notes
from services.distiller.digest import sha256
from services.distiller.place import write_whole
from services.distiller.spec import Objective
from services.distiller.trainer.job import Job

CARD, SUMS = "README.md", "SHA256SUMS"


def complete(directory: Path, job: Job, figures: Mapping[str, Any] | None = None) -> None:
    """Write both, or write them anew; nothing else may be written there afterwards. Args: figures: of the report."""
    notes = read_notes(directory) if is_there(directory) else None
    write_whole(directory / CARD, card(job, figures or {}, notes).encode())
    write_whole(directory / SUMS, sums(directory).encode())


def card(job: Job, figures: Mapping[str, Any], int8: Notes | None = None) -> str:
    """The model card of a job's student. Args: int8: what is said of its form in 8 bits, if the card is for that."""
    spec = job.spec
    made = json.loads((job.place.initial / "student.json").read_bytes())["description"]
    teacher = spec.teacher or "the 135M chat model that comes with LADR"
    head = {
        "library_name": "ladr" if int8 else "transformers",
        "pipeline_tag": _kind(job),
        **({"base_model": spec.teacher} if spec.teacher else {}),
        "license": "other",
        "license_name": "that-of-the-teacher",
        "tags": ["distillation", "int8"] if int8 else ["distillation"],
    }
    data = f"`{spec.data.path}`" if spec.data.path else "the conversations that come with the service"
    if spec.data.answers_from:
        data += f", answered by the model `{spec.data.answers_from}`"
    training = spec.training
    return "\n".join(
        [
            "---",
            yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip(),
            "---",
            "",
            f"# A student of {teacher}" + (", in 8 bits" if int8 else ""),
            "",
            f"- **Teacher**: {teacher}",
            f"- **How it was made**: {made}",
            f"- **Objective**: {objective(spec.objective)}",
            f"- **Data**: {data}: {len(job.corpus.train)} records to learn from, {len(job.corpus.held_out)} held out",
            f"- **Training**: {training.steps} steps of {training.batch_sequences} "
            + ("pictures" if job.of_images else f"sequences of {spec.data.sequence_tokens} tokens")
            + f", learning rate {training.learning_rate:g}, seed {training.seed}",
            *_losses(job),
            *(_in_8_bits(int8) if int8 else ()),
            *_figures(figures),
            "- **License**: that of the teacher, as far as it binds what is made of it",
            "",
            f"`sha256sum -c {SUMS}` checks that all files are as they were written.",
            "",
        ]
    )


def _kind(job: Job) -> str:
    if not job.of_images:
        return "text-generation"
    return "image-classification" if job.pictures.classes else "image-feature-extraction"


def objective(of: Objective) -> str:
    """The objective as a formula, its zero terms left out."""
    parts = [
        f"{of.task_weight:g} · cross-entropy" if of.task_weight else "",
        f"{of.kl_weight:g} · τ² · {of.divergence} at τ = {of.temperature:g}" if of.kl_weight else "",
        f"{of.attention_weight:g} · squared distance of attention" if of.attention_weight else "",
        f"{of.hidden_weight:g} · squared distance of hidden states" if of.hidden_weight else "",
        f"{of.refusal_weight:g} · refusal balance" if of.refusal_weight else "",
    ]
    return " + ".join(part for part in parts if part)


def sums(directory: Path) -> str:
    """SHA-256 of each file there, as `sha256sum` writes and checks it."""
    files = sorted(file for file in directory.rglob("*") if file.is_file() and file.name != SUMS)
    return "".join(f"{sha256(file)}  {file.relative_to(directory).as_posix()}\n" for file in files)


def whole(directory: Path) -> bool:
    """Whether each file there but the card is as it was written; the card gains figures."""
    try:
        written = (directory / SUMS).read_text()
        return _but_card(written) == _but_card(sums(directory))
    except (OSError, UnicodeDecodeError):
        return False


def _but_card(written: str) -> list[str]:
    return [line for line in written.splitlines() if not line.endswith(f"  {CARD}")]


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """What the report found, as rows of a table."""
    rows = [f"| {name} | {value:.4g} |" for name, value in figures.items() if isinstance(value, int | float)]
    return ["", "| figure | value |", "|---|---|", *rows, ""] if rows else []


def _in_8_bits(notes: Notes) -> list[str]:
    """What quantising did, its KL step by step, and how to load it."""
    what = "weights and activations" if notes.kind == "w8a8" else "weights alone"
    share = notes.bytes_after / notes.bytes_before if notes.bytes_before else 1.0
    return [
        f"- **8 bits**: `{notes.kind}` ({what}) in {len(notes.layers)} linear layers, {len(notes.rank)} of them with an"
        f" adapter; {len(notes.kept)} stay as they were; {share:.0%} of the bytes",
        f"- **KL to the student it was made of**: {notes.kl_before:.4g} before repair, {notes.kl:.4g} after it, in nats a"
        f" token, over {notes.measured_tokens} tokens of {notes.measured_dialogues} records that nothing was fitted to",
        "- **Loading**: a worker of LADR, or `services.common.int8.form.read`; transformers' own `from_pretrained` does not",
        "",
        "| step | KL | seconds |",
        "|---|---|---|",
        *(f"| {one.step} | {one.kl:.4g} | {one.seconds:.3g} |" for one in notes.steps),
        "",
    ]


def _losses(job: Job) -> list[str]:
    """The last losses of the training, if it had a step."""
    last = None
    for progress, _ in job.place.read_progress():
        last = progress if progress.losses else last
    if last is None:
        return []
    parts = ", ".join(f"{name} {loss:.4g}" for name, loss in sorted(last.losses.items()))
    return [f"- **Last losses**, by part, at step {last.step} after {last.tokens} tokens: {parts}"]
