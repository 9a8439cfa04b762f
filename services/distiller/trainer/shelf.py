"""The teacher's most likely tokens, on disk: written once, read in any order, never held whole.

taught/
    RANK-00000.safetensors   keys [documents, 2], starts [documents + 1], ids [tokens, k], log_probabilities [tokens, k]; and
                             their digest, in its header
    complete.json            once all is there: the names of all shards

A document has as many tokens here as it has scored ones. A shard that is not as it was written counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from services.distiller.place import write_whole
from services.distiller.trainer.directory import sync

SHARD_VALUES = 4 << 20
"""Values (tokens × k) after which a shard is written: 64 MiB."""
Key = tuple[int, int]
_TENSORS = ("keys", "starts", "ids", "log_probabilities")
log = logging.getLogger(__name__)


class Shelf:
    """What is stored in a directory; damaged shards are taken away. One that writes gathers at most a shard in memory.

    Args: name: of the shards that this process writes.
    """

    def __init__(self, root: Path, name: str = "0") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root, self._name = root, name
        self._keys: list[Key] = []
        self._parts: list[tuple[Any, Any]] = []
        self._values = 0
        self._index()

    @staticmethod
    def complete(root: Path) -> bool:
        """Whether all is there, as it was written."""
        try:
            names = json.loads((root / "complete.json").read_bytes())["shards"]
            return bool(names) and all(_whole(root / name) for name in names)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def finish(self) -> None:
        """Say that all is there."""
        names = sorted(path.name for path in self._root.glob("*.safetensors"))
        write_whole(self._root / "complete.json", json.dumps({"shards": names}).encode())

    def keys(self) -> Iterable[Key]:
        """The documents that are stored."""
        return ((int(one), int(other)) for one, other in self._known)

    def put(self, key: Key, ids: Any, log_probabilities: Any) -> None:
        """Add a document: ids and log-probabilities [tokens, k] of its scored tokens."""
        self._keys.append(key)
        self._parts.append((ids.to("cpu", torch.int32), log_probabilities.to("cpu", torch.float32)))
        self._values += ids.numel()
        if self._values >= SHARD_VALUES:
            self.flush()

    def flush(self) -> None:
        """Write what was added as a shard."""
        if not self._keys:
            return
        last = max(self._root.glob(f"{self._name}-*.safetensors"), default=None)
        number = int(last.stem.rpartition("-")[2]) + 1 if last else 0
        path = self._root / f"{self._name}-{number:05d}.safetensors"
        starts = np.cumsum([0, *(len(ids) for ids, _ in self._parts)])
        tensors = {
            "keys": torch.tensor(self._keys),
            "starts": torch.from_numpy(starts),
            "ids": torch.cat([ids for ids, _ in self._parts]),
            "log_probabilities": torch.cat([values for _, values in self._parts]),
        }
        new = path.with_suffix(".new")
        save_file(tensors, new, {"digest": _digest({name: one.numpy() for name, one in tensors.items()})})
        sync(new)
        new.rename(path)
        sync(self._root)
        self._keys, self._parts, self._values = [], [], 0

    def get(self, key: Key) -> tuple[Any, Any]:
        """Ids (int64) and log-probabilities [tokens, k] of a document.

        Raises: KeyError: it is not stored.
        """
        shard, start, end = self._places[self._row(key)]
        with safe_open(self._shards[shard], "pt") as file:
            ids = file.get_slice("ids")[start:end]
            values = file.get_slice("log_probabilities")[start:end]
        return ids.long(), values

    def _row(self, key: Key) -> int:
        row = int(np.searchsorted(self._known[:, 0], key[0]))
        while row < len(self._known) and self._known[row, 0] == key[0]:
            if self._known[row, 1] == key[1]:
                return row
            row += 1
        raise KeyError(key)

    def _index(self) -> None:
        """Where each document is, by its key: shard, and first and last token there. 40 bytes a document."""
        self._shards = []
        for path in sorted(self._root.glob("*.safetensors")):
            if _whole(path):
                self._shards.append(path)
            else:
                log.warning("%s is not as it was written: the teacher says it again", path.name)
                path.unlink(missing_ok=True)
        known, places = [np.empty((0, 2), dtype=np.int64)], [np.empty((0, 3), dtype=np.int64)]
        for number, path in enumerate(self._shards):
            with safe_open(path, "np") as file:
                keys, starts = file.get_tensor("keys"), file.get_tensor("starts")
            known.append(keys)
            places.append(np.stack([np.full(len(keys), number), starts[:-1], starts[1:]], axis=1))
        all_known, all_places = np.concatenate(known), np.concatenate(places)
        order = np.lexsort((all_known[:, 1], all_known[:, 0]))
        self._known, self._places = all_known[order], all_places[order]


def _whole(path: Path) -> bool:
    """Whether a shard is as it was written."""
    try:
        facts = path.stat()
    except OSError:
        return False
    return _read_whole(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _read_whole(path: Path, _size: int, _changed_ns: int) -> bool:
    """The same, of a file that is read once as long as it stays what it is."""
    try:
        with safe_open(path, "np") as file:
            written = (file.metadata() or {}).get("digest")
            return written == _digest({name: file.get_tensor(name) for name in _TENSORS})
    except (OSError, SafetensorError):
        return False


def _digest(tensors: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in _TENSORS:
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()
