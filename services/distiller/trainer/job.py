"""What the phases of a job share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladr.config_distiller import DistillerSettings
from services.distiller.data.corpus import Corpus
from services.distiller.data.stream import Reader
from services.distiller.place import Place
from services.distiller.spec import Spec
from services.distiller.trainer.meter import Meter
from services.distiller.trainer.ranks import Ranks
from services.distiller.trainer.stop import Stop

_LOOK_S = 0.5


@dataclass(eq=False)
class Job:
    """A job in this process.

    Attributes:
        device: torch device of this process.
        tokenizer: the teacher's; of an image encoder its image processor.
        corpus: the records.
        reader: the records as documents; of text.
        pictures: the records as pictures, of which each has `patches`; of images.
        ends: tokens that end a turn.
        padding: token that fills sequences up.
        teacher: frozen, on the device; None once nothing needs it.
        student: in training, in float32, on the device.
        layer_map: pairs of a student's layer and the teacher's layer that it is compared with.
        heads: the teacher's heads that those of the student's last layer are compared with; None: see `attention.same_heads`.
        vocabulary: how many logits are compared.
    """

    place: Place
    spec: Spec
    settings: DistillerSettings
    ranks: Ranks
    device: str
    stop: Stop
    meter: Meter
    tokenizer: Any = None
    corpus: Corpus = field(init=False)
    reader: Reader = field(init=False)
    pictures: Any = None
    patches: int = 0
    ends: tuple[int, ...] = ()
    padding: int = 0
    teacher: Any = None
    student: Any = None
    layer_map: tuple[tuple[int, int], ...] = ()
    heads: tuple[int, ...] | None = None
    vocabulary: int = 0

    def wait_for(self, path: Path) -> None:
        """Until the first process has made a file or directory, however long that takes: no collective call waits for hours.

        Raises: Stopped.
        """
        while not path.exists():
            self.stop.check()
            time.sleep(_LOOK_S)

    @property
    def of_images(self) -> bool:
        """Whether an image encoder learns from pictures; else a language model learns from text."""
        return self.pictures is not None

    @property
    def teacher_runs(self) -> bool:
        """Whether the teacher is needed at each step."""
        objective = self.spec.objective
        return bool(
            (objective.kl_weight and not objective.teacher_top_k)
            or objective.attention_weight
            or objective.hidden_weight
        )
