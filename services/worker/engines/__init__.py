"""The engines, one a module. Each is imported only when it is used, so that none needs another's libraries."""

from __future__ import annotations

from importlib import import_module

from ladr.config import ConfigError, WorkerSettings
from services.worker.engine import Engine

# engine → its class, and what to install for it
_ENGINES = {
    "llamacpp": ("LlamaCppEngine", "pip install 'ladr[server,llamacpp]'"),
    "openai": ("OpenAIEngine", "pip install 'ladr[server]'"),
    "simulated": ("SimulatedEngine", "pip install 'ladr[server]'"),
    "transformers": ("TransformersEngine", "pip install 'ladr[server,torch]'"),
    "vllm": ("VllmEngine", "pip install vllm"),
}


def create(settings: WorkerSettings) -> Engine:
    """Make the engine that `settings.engine` names; it loads no model yet.

    Raises: ConfigError: a library that the engine needs is not installed.
    """
    class_name, remedy = _ENGINES[settings.engine]
    try:
        module = import_module(f"{__name__}.{settings.engine}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("ladr", "services"):
            raise
        raise ConfigError(
            f"worker.engine: {settings.engine} needs {error.name or 'a library'}, which is not installed; run: {remedy}"
        ) from None
    engine: Engine = getattr(module, class_name)(settings)
    return engine
