"""What is said of a model in 8 bits, in the `int8.json` beside it. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE = "int8.json"
FORMAT = 1
Kind = Literal["weight_only", "w8a8"]


class Damaged(ValueError):
    """The directory is no model in 8 bits that this version reads; says why."""


class Step(BaseModel):
    """What was done, and the KL after it in nats a token. `bytes`: of the weights then; `said`: what came of it."""

    model_config = ConfigDict(frozen=True)

    step: str
    kl: float
    seconds: float = 0.0
    bytes: int = 0
    said: str = ""


class Notes(BaseModel):
    """The whole file.

    Attributes:
        format: of the directory.
        kind: of the layers that are quantised; `layers`: their names. kept: linear layers that are not.
        rank: of the adapters beside the quantised layers, by the layer's name.
        steps: KL(unquantised ‖ quantised) after each step, on dialogues that nothing was fitted to.
        kl_before, kl: of the first and the last of them.
        bytes_before, bytes_after: of the weights, unquantised and as they are saved.
        dialogues, measured_dialogues, measured_tokens: what was fitted to, and what was measured on.
        publish: whether it may serve; `why`: why not.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    kind: Kind
    layers: tuple[str, ...]
    kept: tuple[str, ...] = ()
    rank: dict[str, int] = Field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    kl_before: float = 0.0
    kl: float = 0.0
    threshold: float = 0.0
    goal: float = 0.0
    bytes_before: int = 0
    bytes_after: int = 0
    dialogues: int = 0
    measured_dialogues: int = 0
    measured_tokens: int = 0
    publish: bool = True
    why: str = ""

    def figures(self) -> dict[str, float]:
        """The few that lists show; `int8_bytes` is the share of the unquantised bytes."""
        share = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        return {"int8_kl_before": self.kl_before, "int8_kl": self.kl, "int8_bytes": share}


def is_there(directory: Path) -> bool:
    """Whether the directory says that it holds a model in 8 bits."""
    return (directory / FILE).is_file()


def read_notes(directory: Path) -> Notes:
    """Raises: Damaged: the file is not there, is no such JSON, or is of another format."""
    try:
        notes = Notes.model_validate_json((directory / FILE).read_bytes())
    except OSError as error:
        raise Damaged(f"{FILE} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(f"{FILE} is not as it was written: {'.'.join(map(str, first['loc']))} {first['msg']}") from None
    if notes.format != FORMAT:
        raise Damaged(f"{FILE} is of format {notes.format}, and this version reads format {FORMAT}")
    return notes
