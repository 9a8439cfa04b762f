"""Gives the jobs that wait to the devices that are free, and sees each trainer through to its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from ladr.config import DistillerSettings, env_name, plain
from ladr.errors import JobsUnavailable, Overloaded
from services.common.telemetry import tracer
from services.distiller.child import Child
from services.distiller.devices import assign, enough
from services.distiller.log import last_lines
from services.distiller.machine import Event, Fail, Failure, Job, Refused, Start, Yield
from services.distiller.outcome import outcome
from services.distiller.place import DISK_FULL, START, Place, disk_full
from services.distiller.spec import Spec
from services.distiller.store import Store

log = structlog.get_logger()

TRAINER = (sys.executable, "-P", "-m", "services.distiller.trainer")
_AGAIN_S = 1.0  # until a change that the store did not take is tried again


@dataclass
class Running:
    """A trainer that has not ended yet, though its job may have; `ended` is set when it is gone."""

    job: Job
    devices: tuple[str, ...]
    child: Child
    ended: asyncio.Event


class Dispatcher:
    """One trainer at a time on each device.

    Args:
        devices: those of this service. trainer: command line of a trainer, without the job's directory.

    Attributes:
        running: by the job's id; replaced whole at each change, so that other threads may read it.
    """

    def __init__(
        self, store: Store, settings: DistillerSettings, devices: Sequence[str], trainer: Sequence[str] = TRAINER
    ) -> None:
        self._store = store
        self._settings = settings
        self._devices = devices
        self._trainer = trainer
        self._news = asyncio.Event()
        self._stopping = False
        self.running: Mapping[str, Running] = {}

    def place(self, job_id: str) -> Place:
        """The directory of a job."""
        return place_of(self._settings, job_id)

    async def run(self) -> None:
        """Work for ever. Jobs that ran when the service before ended go on."""
        for job in self._store.live.values():
            if job.state == "running":
                await self._tell(job.id, Yield(job.starts))
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                await self._begin(group)
                await self._news.wait()

    def changed(self) -> None:
        """A job came, or left."""
        self._news.set()

    async def stop(self) -> None:
        """Begin nothing more, and let every trainer write a checkpoint and end."""
        self._stopping = True
        for each in self.running.values():
            each.child.stop()
        await asyncio.gather(*(each.ended.wait() for each in self.running.values()))

    def cancelled(self, job_id: str) -> None:
        """A job is not wanted any more: its trainer, if there is one, is to end."""
        if found := self.running.get(job_id):
            found.child.stop()
        self.changed()

    async def gone(self, job_id: str) -> None:
        """A job is forgotten: nothing that its trainer still does is of use. Returns when it has ended."""
        if found := self.running.get(job_id):
            found.child.kill()
            await found.ended.wait()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        waiting = []
        for job in self._store.live.values():
            if job.state != "queued" or job.id in self.running:
                continue
            if enough(job.device, job.processes, self._devices):
                waiting.append(job)
                continue
            message = f"this service has {', '.join(self._devices)} now, and not what the job asks for"
            await self._tell(job.id, Fail(job.starts, Failure("NO_DEVICE", message)))
        if self._stopping:
            return
        taken = {device for each in self.running.values() for device in each.devices}
        free = [device for device in self._devices if device not in taken]
        for job, devices in assign(waiting, free, self._devices):
            place = self.place(job.id)
            grace_s = self._settings.stop_grace.total_seconds()
            environ = {**environment(self._settings, devices), START: str(job.starts + 1)}
            running = Running(job, devices, Child(self._trainer, place, environ, grace_s), asyncio.Event())
            self.running = {**self.running, job.id: running}
            group.create_task(self._one(running))

    async def _one(self, running: Running) -> None:
        job_id = running.job.id
        try:
            job = await self._tell(job_id, Start())
            if job is None:
                return
            if running.child.told:
                await self._tell(job_id, Yield(job.starts))
                return
            log.info("trainer_started", job=job_id, start=job.starts, devices=",".join(running.devices))
            with tracer.start_as_current_span("distill trainer", attributes={"ladr.start": job.starts}) as span:
                event = await self._see_through(job, running.child)
                span.set_attribute("ladr.outcome", type(event).__name__.lower())
            log.info("trainer_ended", job=job_id, start=job.starts, outcome=type(event).__name__.lower(), **_why(event))
            await self._tell(job_id, event)
        finally:
            self.running = {name: each for name, each in self.running.items() if name != job_id}
            running.ended.set()
            self.changed()

    async def _see_through(self, job: Job, child: Child) -> Event:
        place = self.place(job.id)
        try:
            await asyncio.to_thread(_prepare, place, job)
            code = await child.run()
            models = self._settings.model_root
            return await asyncio.to_thread(outcome, place, code, child.told, job.starts, models)
        except (OSError, ValueError) as error:  # a full disk, a spec of another version
            what = "TRAINER_NOT_STARTED", f"the trainer cannot be run: {error}"
            return Fail(job.starts, Failure(*(DISK_FULL if disk_full(error) else what), last_lines(place.log)))

    async def _tell(self, job_id: str, event: Event) -> Job | None:
        """Apply an event, however long the store takes. None: the job is gone, or in no state for it."""
        while True:
            try:
                return await self._store.apply(job_id, event)
            except Refused:
                return None
            except (JobsUnavailable, Overloaded) as error:
                log.warning("job_not_changed", job=job_id, change=type(event).__name__.lower(), reason=error.message)
                await asyncio.sleep(_AGAIN_S)


def place_of(settings: DistillerSettings, job_id: str) -> Place:
    """The directory of a job."""
    return Place(settings.state / "jobs" / job_id)


def environment(settings: DistillerSettings, devices: Sequence[str]) -> dict[str, str]:
    """The settings as a trainer's environment, whatever file or flag they came from; of the devices only its own."""
    values: dict[str, Any] = {**plain(settings), "devices": ",".join(devices)}
    for key in ("state", "model_root", "data_root"):
        values[key] = os.path.abspath(values[key])  # noqa: PTH100  # links stay as they are
    return {env_name("distiller", key): str(value) for key, value in values.items() if value is not None}


def _prepare(place: Place, job: Job) -> None:
    place.root.mkdir(parents=True, exist_ok=True)
    place.failure.unlink(missing_ok=True)
    place.write_spec(Spec.model_validate_json(job.spec))
    with place.log.open("ab") as file:
        file.write(f"[start {job.starts}]\n".encode())


def _why(event: Event) -> dict[str, str]:
    failure: Failure | None = getattr(event, "failure", None)
    return {"reason": failure.reason} if failure else {}
