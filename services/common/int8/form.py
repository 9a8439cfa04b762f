"""A model in 8 bits as a directory.

config.json            the model's own configuration
model-*.safetensors    every tensor by its name in the model, buffers too: int8 weights, scales, adapters, what stays in floats
int8.json              which layers are quantised (see `notes`); it is written last

Tokenizer, chat template and generation settings lie beside them as usual. Tensors that the model uses twice are saved once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from services.common.int8.linear import Int8Linear, W8A8Linear, WeightOnlyLinear
from services.common.int8.notes import FILE, Damaged, Kind, Notes, read_notes
from services.common.weights import Unreadable, config, readable

SHARD_BYTES = 2 << 30
KINDS: dict[Kind, type[Int8Linear]] = {"w8a8": W8A8Linear, "weight_only": WeightOnlyLinear}


def write(model: Any, notes: Notes, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a model whose layers are those of `notes` into an empty directory. Args: dtype: of what is not int8."""
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    for number, tensors in enumerate(_shards(model, dtype)):
        save_file(tensors, directory / f"model-{number:05d}.safetensors")
    (directory / FILE).write_text(notes.model_dump_json(indent=1))


def read(directory: Path, dtype: torch.dtype | None = None, device: str = "cpu") -> Any:
    """The model, in evaluation mode, its weights frozen.

    Args: dtype: of what is not int8; None: as it was saved. Scales stay float32.
    Raises: Damaged: it is not what `write` wrote, or of another version.
    """
    notes = read_notes(directory)
    try:
        with readable(str(directory)):
            found = config(AutoConfig, str(directory))
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(found, dtype=dtype, trust_remote_code=False)
                _shape(model, notes)
            _fill(model, directory, dtype, device)
            if (directory / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(directory)
    except Unreadable as error:
        raise Damaged(f"the model in 8 bits cannot be read: {error}") from error
    return model.eval().requires_grad_(False)


def stored(model: Any) -> dict[str, Any]:
    """The tensors of a model by name, each once, also those buffers that its own saving leaves out."""
    seen: set[int] = set()
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def size(model: Any) -> int:
    """Bytes of all that is stored."""
    return sum(tensor.nbytes for tensor in stored(model).values())


def _shards(model: Any, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    trained = {name for name, _ in model.named_parameters()}
    for name, tensor in stored(model).items():
        tensor = _cast(name, tensor, dtype) if name in trained else tensor
        if shard and sum(one.nbytes for one in shard.values()) + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard = {}
        shard[name] = tensor.cpu().contiguous()
    yield shard


def _shape(model: Any, notes: Notes) -> None:
    """Give a model the layers of `notes`, without values. A head that is quantised is not the embedding any more."""
    for name in notes.layers:
        try:
            linear = model.get_submodule(name)
        except AttributeError:
            raise Damaged(f"{FILE} names the layer {name}, which this model has not") from None
        if type(linear) is not nn.Linear:
            raise Damaged(f"{FILE} names {name}, which is no linear layer")
        rank = notes.rank.get(name, 0)
        made = KINDS[notes.kind](
            *(linear.in_features, linear.out_features, linear.bias is not None, linear.weight.dtype, rank)
        )
        model.set_submodule(name, made)


def _fill(model: Any, directory: Path, dtype: torch.dtype | None, device: str) -> None:
    """Put the saved tensors in their places; every place must get one, of its shape, with numbers that can be."""
    wanted = stored(model)
    for path in sorted(directory.glob("model-*.safetensors")):
        with safe_open(path, "pt", device=device) as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                if name not in wanted:
                    raise Damaged(f"{path.name} has {name}, which this model has not")
                _put(model, name, wanted.pop(name), file.get_tensor(name), dtype)
    if wanted:
        raise Damaged(f"{len(wanted)} tensors are missing, of them {min(wanted)}")
    model.tie_weights()


def _put(model: Any, name: str, place: Any, tensor: Any, dtype: torch.dtype | None) -> None:
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    if tensor.shape != place.shape or (tensor.dtype == torch.int8) != (place.dtype == torch.int8):
        raise Damaged(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {place.dtype} {list(place.shape)}")
    if last == "scales" and not bool((tensor > 0).all()):
        raise Damaged(f"{name} has scales that are not over 0")
    if (last == "scales" or last in module._parameters) and not bool(tensor.isfinite().all()):
        raise Damaged(f"{name} has numbers that are not finite")
    if last not in module._parameters:
        module._buffers[last] = tensor
        return
    module._parameters[last] = nn.Parameter(_cast(name, tensor, dtype), requires_grad=False)


def _cast(name: str, parameter: Any, dtype: torch.dtype | None) -> Any:
    """A parameter in that type; integers and their scales stay as they are."""
    stays = dtype is None or not parameter.is_floating_point() or name.endswith(".scales")
    return parameter if stays else parameter.to(dtype)
