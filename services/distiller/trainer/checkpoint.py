"""What a job needs to go on as if it had not been interrupted.

checkpoints/step-00000050/
    model.safetensors      what is trained
    optimizer.safetensors  AdamW's moments and step, as "exp_avg.NAME", of all that has had a gradient
    random.safetensors     the states of torch's generators
    state.json             step, tokens, position in the data, the state of Python's generator
    digests.json           of those four files

A checkpoint takes its name only when all of it is on the disk. The newest two are kept; one that is not as it was written is
passed over.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from services.distiller.digest import sha256
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.ranks import Ranks, like, whole

KEPT = 2
FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")
_DIGESTS = "digests.json"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far the training is.

    Attributes:
        step: optimiser steps done.
        tokens: tokens trained on.
        position: of the data's stream.
    """

    step: int
    tokens: int
    position: dict[str, Any]


def save(root: Path, progress: Progress, trained: Mapping[str, Any], optimizer: Any, ranks: Ranks) -> None:
    """Write a checkpoint; every process calls it, the first writes.

    Args: trained: the parameters by name.
    """
    weights = _gathered(trained, ranks)
    moved = {name: state for name, one in trained.items() if (state := optimizer.state.get(one))}
    moments = _gathered({f"{kind}.{name}": state[kind] for name, state in moved.items() for kind in _MOMENTS}, ranks)
    if not ranks.first:
        return
    path = root / f"step-{progress.step:08d}"
    shutil.rmtree(path, ignore_errors=True)  # one that was passed over
    with new_directory(path) as new:
        save_file(weights, new / "model.safetensors")
        save_file(moments, new / "optimizer.safetensors")
        save_file(_generators(), new / "random.safetensors")
        (new / "state.json").write_text(json.dumps({**asdict(progress), "random": random.getstate()}))
        seal(new)
    for old in _all(root)[KEPT:]:
        shutil.rmtree(old)


def newest(root: Path) -> Path | None:
    """The newest checkpoint that is as it was written."""
    for path in _all(root):
        try:
            found = [
                name for name, one in json.loads((path / _DIGESTS).read_bytes()).items() if one == sha256(path / name)
            ]
        except (OSError, ValueError, AttributeError) as error:
            log.warning("checkpoint %s is passed over, it cannot be read: %s", path.name, error)
            continue
        if set(found) == set(FILES):
            return path
        log.warning("checkpoint %s is passed over, of its files only %s are whole", path.name, found)
    return None


def seal(path: Path) -> None:
    """Write down what the files of a checkpoint are."""
    (path / _DIGESTS).write_text(json.dumps({name: sha256(path / name) for name in FILES}))


def load(path: Path, trained: Mapping[str, Any], optimizer: Any) -> Progress:
    """Put parameters, optimiser and generators back to where they were."""
    with safe_open(path / "model.safetensors", "pt") as weights, torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(like(parameter, weights.get_tensor(name)))
    with safe_open(path / "optimizer.safetensors", "pt") as moments:
        moved = set(moments.keys())
        for name, parameter in trained.items():
            if f"step.{name}" not in moved:  # the loss does not ask it: a pooler, a mask token
                continue
            state = {kind: moments.get_tensor(f"{kind}.{name}") for kind in _MOMENTS}
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind] = like(parameter, state[kind])
            state["step"] = state["step"].to(parameter.device)
            optimizer.state[parameter] = state
    generators = load_file(path / "random.safetensors")
    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators["cuda"])
    state = json.loads((path / "state.json").read_bytes())
    version, words, gauss = state.pop("random")
    random.setstate((version, tuple(words), gauss))
    return Progress(**state)


def _gathered(tensors: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The tensors in one piece, in the first process; the others help, and keep nothing."""
    gathered = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if ranks.first:
            gathered[name] = full.contiguous()
    return gathered


def _generators() -> dict[str, Any]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _all(root: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in root.glob("step-*") if path.suffix != ".new"), reverse=True)
