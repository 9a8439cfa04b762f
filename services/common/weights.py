"""Models of transformers as they were saved, or not at all: what is missing in a file is never made up."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from services.common.int8.notes import Damaged

NAMED = 3  # tensors that a message names
_LEFT_OVER = re.compile(r"(rotary_emb\.inv_freq|masked_bias|position_ids)$")  # buffers that old versions saved
_OPTIONAL = re.compile(r"(^|\.)(pooler\.|mask_token$)")  # of an image encoder; nothing here looks at them


class Unreadable(ValueError):
    """The files of a model are broken, or do not belong together; says why."""


@contextmanager
def readable(where: str) -> Iterator[None]:
    """For a block that has transformers read a directory: whatever it stumbles over is `Unreadable`, want of memory stays that.
    The message does not tell where the directory is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Unreadable | Damaged) or out_of_memory(error):
            raise
        said = " ".join(str(error).replace(where, "the directory").split())
        raise Unreadable(f"{type(error).__name__}: {said[:200]}") from error


def config(kind: Any, where: str, **options: Any) -> Any:
    """The configuration of a model. Args: kind: AutoConfig. Raises: Unreadable."""
    with readable(where):
        found = kind.from_pretrained(where, trust_remote_code=False, **options)
        context = getattr(found, "max_position_embeddings", None)
        if isinstance(context, int) and context < 0:
            raise Unreadable(f"config.json has a max_position_embeddings of {context}")
    return found


def network(kind: Any, where: str, of_images: bool = False, **options: Any) -> Any:
    """A model all of whose weights are those of the file, and all of the file's are in it.

    Args: kind: one of transformers' Auto classes. of_images: it is an image encoder, of which a head may stay in the file.
    Raises: Unreadable.
    """
    with readable(where):
        model, found = kind.from_pretrained(
            where, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        if said := misfits(found, of_images):
            raise Unreadable(f"the weights do not fit config.json: {said}; take both as they were saved together")
    return model


def misfits(found: Mapping[str, Any], of_images: bool = False) -> str:
    """What does not fit, in words, by what transformers tells of a loading; empty: all does."""
    missing = {one for one in found["missing_keys"] if not (of_images and _OPTIONAL.search(one))}
    other = {one[0]: f"{one[0]} is {list(one[1])}, not {list(one[2])}" for one in found["mismatched_keys"]}
    spare = {one for one in found["unexpected_keys"] if not (of_images or _LEFT_OVER.search(one))}
    parts = [
        *(f"{one} is missing" for one in sorted(missing - set(other))),
        *(other[one] for one in sorted(other)),
        *(f"{one} belongs to no layer" for one in sorted(spare)),
        *(str(one) for one in found["error_msgs"]),
    ]
    more = f", and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return ", ".join(parts[:NAMED]) + more


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was short; that of the processor has no class of its own in torch."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )
