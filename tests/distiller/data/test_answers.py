"""Records are answered by a real worker behind a real router, over what may end on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ladr import Client, SyncClient
from services.distiller.data import answers
from services.distiller.data.answers import Asked, Count, gather, prompt
from services.distiller.data.record import Broken, Record, read
from services.distiller.refused import Refused
from services.distiller.trainer.stop import Stop, Stopped
from tests.load import channel_to, eligible
from tests.ports import free_port
from tests.processes import Mesh, mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    jobs = {
        "LADR_ROUTER__JOBS__STORE": "sqlite",
        "LADR_ROUTER__JOBS__LEASE": "2s",
        "LADR_ROUTER__JOBS__PATH": str(tmp_path_factory.mktemp("jobs") / "jobs.db"),
    }
    async with mesh(1, router=jobs) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        yield m


@pytest.fixture
def model(fleet: Mesh) -> Iterator[str]:
    with SyncClient(fleet.router.address) as client:
        yield client.list_workers()[0].report.models[0].name


def records(path: Path, count: int) -> Path:
    lines = [
        {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": "as it was"}]}
        for n in range(count)
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    return path


async def gathered(
    fleet: Mesh, source: Path, target: Path, asked: Asked, told: Any = print, check: Callable[[], None] = lambda: None
) -> Count:
    def run() -> Count:
        with SyncClient(fleet.router.address) as router:
            return gather(source, target, asked, router, told, check)

    return await asyncio.to_thread(run)


async def left_over(fleet: Mesh) -> list[str]:
    async with Client(fleet.router.address) as client:
        return [job.request_id async for job in client.generations()]


def asked_of(path: Path) -> list[str]:
    return [read(line).messages[0]["content"] for line in path.read_bytes().splitlines()]


async def test_each_record_has_the_models_own_answer_in_the_records_order(
    fleet: Mesh, model: str, tmp_path: Path
) -> None:
    source, target = records(tmp_path / "in.jsonl", 150), tmp_path / "out" / "records.jsonl"
    count = await gathered(fleet, source, target, Asked(model, 200, "order"))
    assert (count.answered, count.cut, count.failed) == (150, 0, 0)
    assert asked_of(target) == [f"question {n}" for n in range(150)]
    made = [read(line).messages[-1] for line in target.read_bytes().splitlines()]
    assert all(one["role"] == "assistant" and one["content"] and one["content"] != "as it was" for one in made)
    assert [path.name for path in target.parent.iterdir()] == ["records.jsonl"]
    assert not await left_over(fleet), "what was taken is not kept a second time"


async def test_a_stopped_job_goes_on_behind_its_last_whole_line(fleet: Mesh, model: str, tmp_path: Path) -> None:
    source, target = records(tmp_path / "in.jsonl", 40), tmp_path / "out" / "records.jsonl"
    stop = Stop()

    def told(count: Count) -> None:
        stop.requested = count.all >= 10

    with pytest.raises(Stopped):
        await gathered(fleet, source, target, Asked(model, 200, "stopped"), told, stop.check)
    log = target.with_name("log.jsonl")
    assert len(log.read_bytes().splitlines()) == 1 + 10 and not target.exists()
    log.write_bytes(log.read_bytes() + b'{"cut": false, "mess')  # as a kill leaves it
    seen: list[int] = []
    count = await gathered(fleet, source, target, Asked(model, 200, "stopped"), lambda count: seen.append(count.all))
    assert (count.answered, seen[0]) == (40, 10)
    assert asked_of(target) == [f"question {n}" for n in range(40)]
    assert not await left_over(fleet)


async def test_answers_that_were_cut_off_are_not_learned(fleet: Mesh, model: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"more data\.answer_tokens") as refused:
        await gathered(fleet, records(tmp_path / "in.jsonl", 3), tmp_path / "out" / "r.jsonl", Asked(model, 1, "cut"))
    assert refused.value.reason == "NOT_ANSWERED"


async def test_a_job_that_got_no_answer_at_all_asks_again_when_it_is_resumed(
    fleet: Mesh, model: str, tmp_path: Path
) -> None:
    source, target = records(tmp_path / "in.jsonl", 3), tmp_path / "out" / "r.jsonl"
    with pytest.raises(Refused):
        await gathered(fleet, source, target, Asked(model, 1, "none"))
    assert (await gathered(fleet, source, target, Asked(model, 200, "none"))).answered == 3


async def test_what_nobody_waits_for_any_more_is_taken_back(fleet: Mesh, tmp_path: Path) -> None:
    source, target = records(tmp_path / "in.jsonl", 200), tmp_path / "out" / "r.jsonl"
    with pytest.raises(Refused) as refused:
        await gathered(fleet, source, target, Asked("absent", 8, "absent"))
    assert refused.value.reason == "NOT_ANSWERED"
    assert not await left_over(fleet), "asked again they would be found failed"


async def test_what_the_router_has_lost_is_asked_again(fleet: Mesh, model: str, tmp_path: Path) -> None:
    source, target = records(tmp_path / "in.jsonl", 30), tmp_path / "out" / "r.jsonl"
    lost: list[str] = []

    def told(count: Count) -> None:
        if count.all == 3:
            with SyncClient(fleet.router.address) as router:
                for n in range(20, 30):
                    router.cancel_generation(name := f"lost-{2 * n + 1}")  # the numbers of their lines
                    router.delete_generation(name)
                    lost.append(name)

    assert (await gathered(fleet, source, target, Asked(model, 200, "lost"), told)).answered == 30
    assert len(lost) == 10


async def test_a_file_that_changed_while_its_lines_were_asked_is_refused(
    fleet: Mesh, model: str, tmp_path: Path
) -> None:
    source, target = records(tmp_path / "in.jsonl", 10), tmp_path / "out" / "r.jsonl"
    stop = Stop()

    def told(count: Count) -> None:
        stop.requested = count.all == 2

    with pytest.raises(Stopped):
        await gathered(fleet, source, target, Asked(model, 200, "changed"), told, stop.check)
    source.write_text(source.read_text().replace("question 0", "riddle"))  # answered, and forgotten by the router
    with pytest.raises(Refused, match="put the file back") as refused:
        await gathered(fleet, source, target, Asked(model, 200, "changed"))
    assert refused.value.reason == "DATA_CHANGED"


async def test_why_there_is_no_answer_tells_of_both_reasons() -> None:
    why = answers._why(Count(cut=1, failed=9, reason="no worker"))
    assert all(part in why for part in ("1 answers were cut off", "9 failed", "no worker", "resume"))


async def test_a_router_that_restarts_is_waited_for(fleet: Mesh, model: str, tmp_path: Path) -> None:
    source, target = records(tmp_path / "in.jsonl", 30), tmp_path / "out" / "records.jsonl"
    half = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(count: Count) -> None:
        if count.all == 5:
            loop.call_soon_threadsafe(half.set)

    gathering = asyncio.create_task(gathered(fleet, source, target, Asked(model, 200, "restart"), told))
    await half.wait()
    await fleet.router.kill()
    await fleet.router.start()
    assert (await gathering).answered == 30
    assert asked_of(target) == [f"question {n}" for n in range(30)]


async def test_a_router_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.3)
    with SyncClient(f"127.0.0.1:{free_port()}") as router, pytest.raises(Refused, match="resume") as refused:
        gather(records(tmp_path / "in.jsonl", 1), tmp_path / "r.jsonl", Asked("", 8, "x"), router, print, lambda: None)
    assert refused.value.reason == "ROUTER_UNREACHABLE"


async def test_the_last_answer_is_left_out_and_earlier_ones_are_not() -> None:
    turns = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    assert prompt(Record(messages=tuple(turns))) == turns[:4]
    assert prompt(Record(messages=tuple(turns[:2]))) == turns[:2]


@pytest.mark.parametrize(
    "record",
    [
        Record(text="a text"),
        Record(messages=({"role": "assistant", "content": "hello"},)),
        Record(messages=({"role": "user", "content": "hello"},), tools=({"name": "t"},)),
    ],
)
async def test_what_asks_nothing_is_refused(record: Record) -> None:
    with pytest.raises(Broken):
        prompt(record)
