"""Models and tokenizers from safetensors or GGUF; code that lies beside them is never run."""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoTokenizer,
    GenerationConfig,
)

from ladr.config_distiller import DistillerSettings
from services.common import weights as files
from services.common.int8.notes import is_there
from services.common.sources import locate
from services.distiller.refused import Refused
from services.distiller.trainer.directory import new_directory

log = logging.getLogger(__name__)


def find(source: str, settings: DistillerSettings) -> str:
    """Directory (or hub name) of a model as safetensors; one that comes as GGUF is converted first, once for all jobs.

    Raises: LadrError: it lies outside the model root, or is not there. Refused: it cannot be read.
    """
    where, gguf = locate(source, settings.model_root, settings.allow_hub)
    return str(_converted(Path(where), gguf, settings.state / "models")) if gguf else where


def config(where: str) -> Any:
    """Raises: Refused: there is none, or it makes no sense."""
    with _refusing():
        return files.config(AutoConfig, where)


def tokenizer(where: str) -> Any:
    """Raises: Refused: there is none."""
    with _refusing(), files.readable(where):
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)


def image_processor(where: str) -> Any:
    """What makes pixels of pictures. Raises: Refused: there is none."""
    with _refusing(), files.readable(where):
        return AutoImageProcessor.from_pretrained(where, trust_remote_code=False, backend="pil")


def of_images(config: Any) -> bool:
    """Whether it is an image encoder; else a language model."""
    return hasattr(config, "image_size") and hasattr(config, "patch_size")


def classifies(config: Any) -> bool:
    """Whether an image encoder has classes."""
    return any(name.endswith("ForImageClassification") for name in config.architectures or ())


def weights(where: str, dtype: torch.dtype | str = "auto") -> Any:
    """The model, on the processor. `dtype` "auto": as it was saved.

    Raises: Refused: it cannot be read, its weights do not fit its configuration, or it is in 8 bits.
    """
    if is_there(Path(where)):
        raise Refused("MODEL_UNREADABLE", "the model is in 8 bits: give the one that it was made of")
    kind: Any = AutoModelForCausalLM
    if pictures := of_images(found := config(where)):
        kind = AutoModelForImageClassification if classifies(found) else AutoModel
    with _refusing():
        return files.network(kind, where, pictures, dtype=dtype, use_safetensors=True)


def ends(where: str, tokens: Any) -> tuple[int, ...]:
    """Tokens that end a turn, by the tokenizer and the model's settings for generation."""
    try:
        settings = GenerationConfig.from_pretrained(where)
    except OSError:  # it has none of its own
        settings = GenerationConfig.from_model_config(config(where))
    given = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    return tuple(sorted({int(one) for one in [*given, tokens.eos_token_id] if one is not None}))


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except files.Unreadable as error:
        log.warning("the model is not read: %s", error)
        raise Refused(
            "MODEL_UNREADABLE",
            f"the model cannot be read ({error}): give a directory with config.json, safetensors and tokenizer (of an image"
            " encoder: image processor), or a GGUF file",
        ) from error


def _converted(directory: Path, name: str, cache: Path) -> Path:
    """A GGUF file as a directory of safetensors; reading it takes minutes for a large model, so it is kept.

    What is kept goes by path, size and time of the file.
    """
    file = directory / name
    facts = file.stat()
    key = hashlib.blake2b(f"{file}:{facts.st_size}:{facts.st_mtime_ns}".encode(), digest_size=12).hexdigest()
    made = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another job may want it too; a killed one lets go
        if not made.is_dir():
            log.info("converting %s to safetensors", name)
            with new_directory(made) as new:
                _convert(str(directory), name, new)
    return made


def _convert(directory: str, name: str, to: Path) -> None:
    try:
        read = files.network(AutoModelForCausalLM, directory, gguf_file=name, dtype=torch.float32)
        with files.readable(directory):
            tokens = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    except files.Unreadable as error:
        log.warning("the GGUF file is not read: %s", error)
        raise Refused(
            "MODEL_UNREADABLE", f"the GGUF file cannot be read ({error}): give the model as safetensors"
        ) from error
    del read.config.quantization_config  # it says GGUF, and then the model counts as one that cannot be saved
    plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(to)
    tokens.save_pretrained(to)
