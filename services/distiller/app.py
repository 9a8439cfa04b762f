"""One Distiller server, put together from its settings."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import structlog
import uuid_utils

from ladr.config import DistillerSettings
from ladr.errors import LadrError
from services.common.server import CannotStart, Server, serve
from services.distiller.collector import DistillerCollector
from services.distiller.devices import present
from services.distiller.dispatcher import TRAINER, Dispatcher
from services.distiller.rollout.collector import RolloutCollector
from services.distiller.rollout.service import Rollouts
from services.distiller.rollout.store import RolloutStore
from services.distiller.service import Jobs
from services.distiller.servicer import NAME, DistillerServicer
from services.distiller.store import Store

log = structlog.get_logger()

_GRACE = timedelta(seconds=1)  # for streams that drain has ended: who does not read by then is cut off


def make_id() -> str:
    """A job's id: a UUIDv7."""
    return str(uuid_utils.uuid7())


class App:
    """A distiller with its server and its trainers; `run` once.

    Args: trainer: command line of a trainer, to which the job's directory is added.
    """

    def __init__(self, settings: DistillerSettings, trainer: Sequence[str] = TRAINER) -> None:
        self._settings = settings
        devices = settings.devices or present()
        self.server = Server(settings.model_copy(update={"drain_grace": min(settings.drain_grace, _GRACE)}))
        self.store = Store(settings.state / "jobs.db", settings.max_waiting + len(devices))
        self.dispatcher = Dispatcher(self.store, settings, devices, trainer)
        self.jobs = Jobs(self.store, self.dispatcher, settings, devices, make_id)
        self.rollout_store = RolloutStore(settings.state / "rollouts.db")
        find = self.jobs.get_to_publish
        self.rollouts = Rollouts(self.rollout_store, settings.router, find, make_id, settings.max_watchers)
        self.server.registry.register(DistillerCollector(self.store, self.dispatcher, lambda: self.jobs.watchers))
        self.server.registry.register(RolloutCollector(self.rollout_store, lambda: self.rollouts.watchers))
        self.server.add(NAME, DistillerServicer(self.jobs, self.rollouts).handlers())
        self.serving = asyncio.Event()
        self._devices = devices

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`: then every trainer writes a checkpoint and ends, and its job goes on at the next start.

        Raises: CannotStart: a port is in use, or the state directory cannot be used.
        """
        held = await asyncio.to_thread(_take, self._settings.state)
        try:
            await self._open()
            await self.jobs.clean()
            await serve(
                self.server,
                stop,
                started=self._started,
                background=[self.dispatcher.run, self.rollouts.controller.run],
                before_stop=self._drain,
            )
        finally:
            await self.jobs.finish()
            await self.rollouts.finish()
            await self.rollout_store.close()
            await self.store.close()
            os.close(held)

    async def _open(self) -> None:
        for name, store in (("jobs.db", self.store), ("rollouts.db", self.rollout_store)):
            try:
                await store.open()
            except LadrError as error:
                path = self._settings.state / name
                raise CannotStart(f"{path} cannot be used ({error.__cause__}); set distiller.state") from error

    async def _started(self) -> None:
        await self.server.set_serving(True)
        log.info("serving", port=self.server.port, http_port=self.server.http_port, devices=",".join(self._devices))
        self.serving.set()

    async def _drain(self) -> None:
        self.jobs.close()
        self.rollouts.close()
        await self.dispatcher.stop()


def _take(state: Path) -> int:
    """Take the state directory for this process. Raises: CannotStart: another has it, or it cannot be made."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CannotStart(f"{state} cannot be used ({error.strerror}); set distiller.state") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise CannotStart(f"another distiller has {state}; set distiller.state to another directory") from None
    return held
