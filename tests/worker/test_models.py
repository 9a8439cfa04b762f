"""Models of a worker: loaded, used and taken out, by callers who stay and callers who do not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ladr.config import ModelSettings
from ladr.errors import AlreadyExists, InvalidRequest, NotFound, Overloaded
from ladr.v1 import fleet_pb2
from services.worker.models import Models

LOADING, READY = fleet_pb2.MODEL_STATE_LOADING, fleet_pb2.MODEL_STATE_READY


class Engine:
    """Loads when it is let, and knows what it holds."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.holds: set[str] = set()

    async def load(self, model: ModelSettings, progress: object) -> int:
        await self.let.wait()
        if model.source == "broken":
            raise InvalidRequest("broken", field="source")
        self.holds.add(model.name)
        return 100

    async def unload(self, name: str) -> None:
        self.holds.remove(name)


def models(engine: Engine, most: int = 2) -> Models:
    return Models(engine, most, changed=lambda: None)  # type: ignore[arg-type]  # the part of an engine that is used


async def load(held: Models, name: str, source: str = "") -> list[int]:
    async with aclosing(held.load(ModelSettings(name=name, source=source))) as steps:
        return [status.state async for status in steps]


def states(held: Models) -> dict[str, int]:
    return {status.name: status.state for status in held.statuses()}


async def test_a_load_tells_its_steps_and_goes_on_without_its_caller() -> None:
    engine = Engine()
    held = models(engine)
    caller = asyncio.create_task(load(held, "a"))
    await asyncio.sleep(0.01)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert states(held) == {"a": LOADING}
    engine.let.set()
    await asyncio.sleep(0.01)
    assert states(held) == {"a": READY}
    assert await load(held, "b") == [LOADING, READY]


async def test_a_model_in_use_is_taken_out_when_its_last_user_has_left_also_without_the_caller() -> None:
    engine = Engine()
    engine.let.set()
    held = models(engine)
    await load(held, "a")
    with held.use("a"):
        caller = asyncio.create_task(held.unload("a"))
        await asyncio.sleep(0.01)
        with pytest.raises(NotFound), held.use("a"):
            pass
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert engine.holds == {"a"}
    await asyncio.sleep(0.01)
    assert engine.holds == set()
    assert states(held) == {}
    await load(held, "a")
    assert states(held) == {"a": READY}


async def test_what_is_expected_is_told_from_the_first_report_and_loaded_once() -> None:
    engine = Engine()
    engine.let.set()
    held = models(engine)
    held.expect([ModelSettings(name="a"), ModelSettings(name="b")])
    assert states(held) == {"a": LOADING, "b": LOADING}
    await load(held, "a")
    with pytest.raises(AlreadyExists):
        await load(held, "a")


async def test_a_failed_load_says_why_and_may_be_tried_again_and_the_number_is_bounded() -> None:
    engine = Engine()
    engine.let.set()
    held = models(engine)
    with pytest.raises(InvalidRequest):
        await load(held, "a", "broken")
    assert states(held) == {}  # its caller knows why; it is in nobody's way
    await load(held, "a")
    await load(held, "b")
    with pytest.raises(Overloaded):
        await load(held, "c")
    with pytest.raises(NotFound):
        await held.unload("c")


async def test_a_draft_for_an_engine_that_takes_none_is_refused() -> None:
    engine = Engine()
    engine.let.set()
    held = models(engine)
    with pytest.raises(InvalidRequest, match="takes no draft") as caught:
        async for _ in held.load(ModelSettings(name="a", draft="small")):
            pass
    assert caught.value.field == "draft"
    assert states(held) == {}
