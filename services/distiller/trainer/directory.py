"""A directory that is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """An empty directory to write into. At the end of the block its files are on the disk and it takes its name in one step;
    what a kill leaves behind is cleared away the next time.

    Raises: OSError: there is one of that name.
    """
    new = path.with_name(path.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    for file in new.rglob("*"):
        if file.is_file():
            file.chmod(new.stat().st_mode & 0o666)  # safetensors writes for its own user alone
        sync(file)
    sync(new)
    new.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file, or a directory's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
