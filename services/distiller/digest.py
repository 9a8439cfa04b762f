"""The digest by which a file is known to be what it was."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256(file: Path) -> str:
    """Of all that is in it, as `sha256sum` has it."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
