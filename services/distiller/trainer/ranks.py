"""The processes of a job, and how a model is spread over them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from services.distiller.layers import layers
from services.distiller.trainer.launch import STORE

T = TypeVar("T")
_PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process among those of its job; one alone needs nothing of torch.distributed.

    Attributes:
        rank: from 0; the first writes what the job leaves behind.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, all_of_them: Sequence[T]) -> Sequence[T]:
        """This process's part, as large as each other's."""
        size = len(all_of_them) // self.count
        return all_of_them[self.rank * size : (self.rank + 1) * size]

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            distributed.barrier()

    def any(self, flag: bool, device: str) -> bool:
        """Whether it is so in any of them."""
        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def sum(self, value: Any) -> Any:
        """A tensor summed over all of them."""
        if self.count > 1:
            distributed.all_reduce(value)
        return value

    def shard(self, model: Any, device: str, dtype: torch.dtype) -> None:
        """Spread a model's weights over the processes' devices, layer by layer; it computes in `dtype`. Once is enough."""
        if self.count > 1 and not isinstance(model, FSDPModule):
            mesh = init_device_mesh(device.split(":")[0], (self.count,))
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
            for layer in layers(model):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)

    def shard_whole(self, module: Any, device: str) -> None:
        """Spread a module of few weights over the processes."""
        if self.count > 1:
            fully_shard(module, mesh=init_device_mesh(device.split(":")[0], (self.count,)))


def device_of(wanted: str, given: Sequence[str] = ()) -> str:
    """The device of this process: one that the service gave; without any what is wanted, or cuda where there is one.

    Several processes have a GPU each.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = given[local % len(given)] if given else wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda":
        device = f"cuda:{local}"
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    return device


def join(device: str) -> Ranks:
    """Be one of the processes that the environment speaks of (RANK, WORLD_SIZE, as torchrun sets them)."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    rank = int(os.environ["RANK"])
    store = os.environ.get(STORE)
    distributed.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        init_method=f"file://{store}" if store else "env://",
        rank=rank,
        world_size=count,
        timeout=_PATIENCE,
    )
    return Ranks(rank, count)


def whole(tensor: Any) -> Any:
    """A tensor that may be spread over the processes, in one piece on the processor; all of them must ask."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def like(tensor: Any, full: Any) -> Any:
    """A whole tensor spread as another one is, on its device."""
    if isinstance(tensor, DTensor):
        return distribute_tensor(full.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    return full.to(tensor.device)
