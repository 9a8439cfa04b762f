"""The engines, one a module. Each is imported only when it is used, so that none needs another's libraries."""

from __future__ import annotations

from importlib import import_module

from ladr.config import ConfigError, WorkerSettings
from ladr.config_engines import INSTALL
from services.worker.engine import Engine

_ENGINES = {
    "llamacpp": "LlamaCppEngine",
    "openai": "OpenAIEngine",
    "simulated": "SimulatedEngine",
    "transformers": "TransformersEngine",
    "vllm": "VllmEngine",
}
DRAFTS = frozenset({"transformers"})  # engines that take a draft model


def create(settings: WorkerSettings) -> Engine:
    """Make the engine that `settings.engine` names; it loads no model yet.

    Raises: ConfigError: a library that the engine needs is not installed.
    """
    try:
        module = import_module(f"{__name__}.{settings.engine}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("ladr", "services"):
            raise
        raise ConfigError(
            f"worker.engine: {settings.engine} needs {error.name or 'a library'}, which is not installed; "
            f"in a checkout run: {INSTALL[settings.engine]}"
        ) from None
    engine: Engine = getattr(module, _ENGINES[settings.engine])(settings)
    return engine
