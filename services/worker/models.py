"""The models of a worker: which names it serves, which it is loading, how many requests use each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from ladr.config import ModelSettings
from ladr.errors import AlreadyExists, EngineFailed, InvalidRequest, LadrError, NotFound, Overloaded
from ladr.v1 import fleet_pb2
from services.worker.engine import Engine

log = structlog.get_logger()

_LOADING, _READY, _FAILED = fleet_pb2.MODEL_STATE_LOADING, fleet_pb2.MODEL_STATE_READY, fleet_pb2.MODEL_STATE_FAILED


@dataclass
class _Model:
    settings: ModelSettings
    state: int = _LOADING
    progress: float = 0.0
    context_tokens: int = 0
    error: LadrError | None = None
    users: int = 0
    expected: bool = False  # announced, and nobody has begun to load it

    def status(self) -> fleet_pb2.ModelStatus:
        return fleet_pb2.ModelStatus(
            name=self.settings.name,
            state=self.state,  # type: ignore[arg-type]  # an enum's number
            context_tokens=self.context_tokens,
            load_progress=self.progress,
            error=self.error.message if self.error else "",
        )


class Models:
    """Models of one engine. `changed` is called after each change of a state, for a report without delay."""

    def __init__(
        self, engine: Engine, max_models: int, changed: Callable[[], None], takes_drafts: bool = False
    ) -> None:
        self._engine = engine
        self._takes_drafts = takes_drafts
        self._max = max_models
        self._changed = changed
        self._models: dict[str, _Model] = {}
        self._news = asyncio.Event()  # set and replaced at each change
        self._tasks: set[asyncio.Task[None]] = set()

    def statuses(self) -> list[fleet_pb2.ModelStatus]:
        """Every model, by name. Callable from any thread."""
        return [model.status() for _, model in sorted(self._models.copy().items())]

    @contextmanager
    def use(self, name: str) -> Iterator[str]:
        """Keep a model from being unloaded for the block; gives its name. An empty name is the only model, if there is one.

        Raises: NotFound: it is not ready here.
        """
        ready = [n for n, m in self._models.items() if m.state == _READY]
        if not name and len(ready) == 1:
            name = ready[0]
        if name not in ready:
            raise NotFound(f"this worker does not serve {_quoted(name)}", resource=("model", name))
        model = self._models[name]
        model.users += 1
        try:
            yield name
        finally:
            model.users -= 1
            if model.state != _READY and not model.users:
                self._announce()

    def expect(self, models: Iterable[ModelSettings]) -> None:
        """Announce models that will be loaded, so that requests for them are told to wait and not that they do not exist."""
        for settings in models:
            self._models[settings.name] = _Model(settings, expected=True)

    async def load(self, settings: ModelSettings) -> AsyncGenerator[fleet_pb2.ModelStatus]:
        """Load a model, telling each step; the load goes on if the caller does not stay.

        Raises: AlreadyExists, Overloaded, InvalidRequest (a draft for an engine that takes none), and what the engine raises.
        """
        if settings.draft and not self._takes_drafts:
            raise InvalidRequest("this worker's engine takes no draft model; transformers does", field="draft")
        name = settings.name
        held = self._models.get(name)
        if held and held.state != _FAILED and not held.expected:
            raise AlreadyExists(f"the name {_quoted(name)} is in use", resource=("model", name))
        for failed in [n for n, m in self._models.items() if m.state == _FAILED]:
            del self._models[failed]
        if name not in self._models and len(self._models) >= self._max:
            raise Overloaded(f"this worker holds {self._max} models already; unload one first")
        model = self._models[name] = _Model(settings)
        self._announce()
        task = asyncio.create_task(self._load(model))
        self._keep(task)
        told = None
        while True:
            status = model.status()
            if status != told:
                told = status
                yield status
                continue  # it may have moved on meanwhile
            if model.error:
                if self._models.get(name) is model:
                    del self._models[name]  # its caller knows; a report has told the others
                    self._announce()
                raise model.error
            if model.state != _LOADING:
                return
            await self._news.wait()

    async def unload(self, name: str) -> fleet_pb2.ModelStatus:
        """Take a model out once nobody uses it. Raises: NotFound."""
        model = self._models.get(name)
        if not model or model.state == _LOADING or model.state == fleet_pb2.MODEL_STATE_UNLOADED:
            raise NotFound(f"this worker does not serve {_quoted(name)}", resource=("model", name))
        task = asyncio.create_task(self._unload(model, was_ready=model.state == _READY))
        model.state = fleet_pb2.MODEL_STATE_UNLOADED
        self._announce()
        self._keep(task)
        await asyncio.shield(task)  # it goes on if the caller does not stay
        return model.status()

    async def close(self) -> None:
        """Stop what is still being loaded or taken out."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, model: _Model) -> None:
        loop = asyncio.get_running_loop()

        def progress(share: float) -> None:
            model.progress = share
            loop.call_soon_threadsafe(self._announce)

        try:
            model.context_tokens = await self._engine.load(model.settings, progress)
            model.progress = 1.0
            model.state = _READY
            log.info("model_loaded", model=model.settings.name, context_tokens=model.context_tokens)
        except LadrError as error:
            self._fail(model, error)
        except Exception:
            log.exception("model_load_broke", model=model.settings.name)
            self._fail(model, EngineFailed("the engine could not load it; the worker's log has the reason"))
        self._announce()

    async def _unload(self, model: _Model, was_ready: bool) -> None:
        name = model.settings.name
        while model.users:
            await self._news.wait()
        if was_ready:
            await self._engine.unload(name)
        del self._models[name]
        self._announce()
        log.info("model_unloaded", model=name)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, model: _Model, error: LadrError) -> None:
        model.error = error
        model.state = _FAILED
        log.error("model_not_loaded", model=model.settings.name, reason=error.message)

    def _announce(self) -> None:
        self._changed()
        self._news.set()
        self._news = asyncio.Event()


def _quoted(name: str) -> str:
    return repr(name[:64])
