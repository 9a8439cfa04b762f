"""Pictures: JSON Lines of {"image": path, "label": class}, the path from where the file is, the label where it is known."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from ladr.errors import InvalidRequest
from services.common.sources import under
from services.distiller.data.corpus import Corpus
from services.distiller.data.record import Broken, parsed
from services.distiller.refused import Refused

MOST_PIXELS = 64 << 20
NO_LABEL = -100
_LABELS = 1 << 31
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Picture:
    """A record. `label`: its class, from 0, or −100."""

    image: str
    label: int


@dataclass(frozen=True, eq=False)
class Pictures:
    """The records of a file.

    Attributes:
        root: the data root, out of which no path leads.
        classes: labels are under this; 0: any.
    """

    root: Path
    directory: Path
    classes: int = 0

    def checked(self, line: bytes) -> Picture:
        """A record whose picture is of a kind that can be used; what is behind its header shows only when it is.

        Raises: Broken: see `read`, or its picture is of another kind.
        """
        picture = self.read(line)
        try:
            with _open(self.path(picture.image)):
                return picture
        except _UNREADABLE as error:
            raise Broken(f"the picture {picture.image[:200]} cannot be read: {_why(error)}") from None

    def read(self, line: bytes) -> Picture:
        """Raises: Broken: no such record, or its picture is not there."""
        value = parsed(line)
        if not isinstance(value, dict) or not isinstance(value.get("image"), str):
            raise Broken('it needs "image", the path of a picture')
        label = value.get("label", NO_LABEL)
        if isinstance(label, bool) or not isinstance(label, int) or (label != NO_LABEL and not 0 <= label < _LABELS):
            raise Broken('"label" is the number of a class, from 0')
        if self.classes and label >= self.classes:
            raise Broken(f'"label" is {label}, and the teacher has the classes 0 to {self.classes - 1}')
        if not self.path(value["image"]).is_file():
            raise Broken(f"there is no picture {value['image'][:200]}")
        return Picture(value["image"], label)

    def path(self, image: str) -> Path:
        """Where a picture is. Raises: Broken: outside the data root."""
        try:
            return under(self.root, str(self.directory / image), "data", "data.path")
        except InvalidRequest as error:
            raise Broken(error.message) from None

    def opened(self, corpus: Corpus, offset: int) -> tuple[Any, int]:
        """The picture of the record at this byte, in RGB, and its label.

        Raises: Refused: it cannot be read, or the record is none any more.
        """
        picture = corpus.record(offset, self.read)
        try:
            with _open(self.path(picture.image)) as image:
                return _in_rgb(image), picture.label
        except _UNREADABLE as error:
            message = f"the picture {picture.image[:200]} cannot be read: {_why(error)}; mend it, then resume the job"
            raise Refused("DATA_BROKEN", message) from error


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A picture, of which no more than its header is read yet. Raises: one of _UNREADABLE."""
    with warnings.catch_warnings(), Image.open(path) as image:
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"it has more than {MOST_PIXELS >> 20} megapixels")
        if image.mode in ("I", "F"):
            raise ValueError("its values have no known range: save it with 8 or 16 bits a channel")
        yield image


def _why(error: Exception) -> str:
    return "it is of no known kind" if isinstance(error, UnidentifiedImageError) else str(error)


def _in_rgb(image: Any) -> Any:
    """A picture of 8 bits a channel; of an animation the first. 16 bits are scaled, where Pillow would cut off above 255."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")
