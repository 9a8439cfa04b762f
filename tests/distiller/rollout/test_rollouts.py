"""Roll-outs in a real mesh: a router, workers, load, and a distiller that drives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToJson

from ladr import Client, errors
from ladr.distill_calls import rollout_state
from ladr.v1 import distiller_pb2 as pb
from services.distiller.rollout.record import Record
from services.distiller.rollout.request import whole
from services.distiller.rollout.service import Rollouts
from services.distiller.rollout.store import MOST_LIVE, RolloutStore
from tests.distiller.distillers import process
from tests.distiller.rollout.meshes import JOB, STUDENT, Fleet, ended, fleet, publisher, request, staged, until
from tests.load import Load, eligible

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[Fleet]:
    async with fleet() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def there(mesh: Fleet) -> AsyncIterator[Fleet]:
    """The mesh, without what a test before left in it."""
    yield mesh
    await mesh.set_split({})
    await mesh.clear()


async def test_a_student_gets_more_and_more_until_it_has_all(there: Fleet, tmp_path: Path) -> None:
    async with (
        publisher(tmp_path, there.router.address) as (app, client),
        Load(there.channel, 60, model="chat") as load,
    ):
        begun = await client.publish_student(request(name="assistant"))  # an alias of chat
        assert rollout_state(begun) == "loading"
        assert (begun.request.model, list(begun.request.stages)) == ("assistant-0000beef", [0.05, 0.5, 1.0])
        seen = [news async for news in client.watch_rollout(begun.id)]
        stages = [(one.stage, one.share) for one in seen if one.share]
        assert list(dict.fromkeys(stages)) == [(0, 0.05), (1, 0.05), (1, 0.5), (2, 0.5), (2, 1.0)]
        last = seen[-1]
        assert rollout_state(last) == "succeeded"
        assert last == await client.get_rollout(begun.id) == (await client.rollouts())[0]
        assert (last.student.succeeded >= 5, last.student.failed) == (True, 0)
        assert last.student.time_to_first_token.ToTimedelta().total_seconds() > 0
        assert last.student.time_per_output_token.ToTimedelta().total_seconds() > 0
        assert any(one.others.succeeded for one in seen)
        assert await there.split() == {"chat": 0.0, "assistant-0000beef": 1.0}
        assert await there.split(f"rollout-{begun.id}") is None
        assert "assistant-0000beef" in await there.models("fresh")
        assert 'ladr_distill_rollouts{state="succeeded"} 1.0' in _metrics(app)
        with pytest.raises(errors.WrongState, match="gets requests for this name already"):
            await client.publish_student(request(name="assistant"))
        # What was loaded for one name is found again for the next roll-out of the same student, and is not its to take away.
        await there.set_split({})
        again = await client.publish_student(request(name="chat", model="assistant-0000beef", stage_s=30))
        await staged(client, again.id, 0.05)
        assert rollout_state(await client.cancel_rollout(again.id)) == "cancelled"
        assert "assistant-0000beef" in await there.models("fresh")
    assert not [one.error for one in load.outcomes if one.error]


async def test_it_goes_back_when_more_of_its_requests_fail(there: Fleet, tmp_path: Path) -> None:
    await there.set_split({"chat": 2, "other": 0})
    async with publisher(tmp_path, there.router.address) as (_, client), Load(there.channel, 60, model="chat"):
        begun = await client.publish_student(request(workers=["failing"], stages=[0.5], stage_requests=200))
        state, rollout = await ended(client, begun.id)
        assert state == "rolled_back", rollout
        assert "requests failed" in rollout.reason
        assert rollout.student.failed >= 3
        assert rollout.share == 0
        assert await there.split() == {"chat": 2, "other": 0}
        assert STUDENT not in await there.models("failing")


async def test_it_goes_back_when_it_is_slower(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client), Load(there.channel, 40, model="chat"):
        begun = await client.publish_student(request(workers=["slow"], stages=[0.3, 1], latency_ratio=2))
        state, rollout = await ended(client, begun.id)
        assert (state, rollout.stage) == ("rolled_back", 0), rollout
        assert "its first token takes" in rollout.reason
        per_token_s = [
            side.time_per_output_token.ToTimedelta().total_seconds() for side in (rollout.student, rollout.others)
        ]
        assert per_token_s[0] >= 0.05 > per_token_s[1] > 0  # a step of the slow worker is 60 ms, of the other 2 ms
        assert await there.split() is None
        assert STUDENT not in await there.models("slow")


async def test_it_goes_back_when_a_stage_takes_too_long(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(timeout_s=0.4))
        state, rollout = await ended(client, begun.id)
        assert (state, await there.split()) == ("rolled_back", None)
        assert "0 of 5 requests answered" in rollout.reason


async def test_a_worker_that_cannot_load_it_ends_it_before_it_begins(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(workers=["fresh", "full"]))
        state, rollout = await ended(client, begun.id)
        assert (state, rollout.share) == ("rolled_back", 0)
        assert "full could not load it: this worker holds 1 models already" in rollout.reason
        assert STUDENT not in await there.models("fresh")
        assert await there.split() is None


async def test_a_model_that_another_loaded_under_its_name_is_left_alone(there: Fleet, tmp_path: Path) -> None:
    await there.load("fresh", "foreign")
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(model="foreign"))
        state, rollout = await ended(client, begun.id)
        assert state == "rolled_back"
        assert "fresh has a model named 'foreign'" in rollout.reason
        assert "foreign" in await there.models("fresh")


async def test_it_is_taken_back_when_it_is_cancelled(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request())
        await staged(client, begun.id, 0.05)
        with pytest.raises(errors.WrongState, match="is being rolled out"):
            await client.delete_distill_job(JOB)
        ended_so = await client.cancel_rollout(begun.id)
        assert (rollout_state(ended_so), ended_so.reason, ended_so.share) == ("cancelled", "it was cancelled", 0)
        assert await client.cancel_rollout(begun.id) == ended_so
        assert await there.split() is None
        assert STUDENT not in await there.models("fresh")


async def test_one_that_has_succeeded_is_taken_back_while_its_shares_are_as_it_left_them(
    there: Fleet, tmp_path: Path
) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(stages=[1.0], stage_requests=0))
        assert (await ended(client, begun.id))[0] == "succeeded"
        assert await there.split() == {"chat": 0.0, STUDENT: 1.0}
        await there.set_split({"chat": 1.0, STUDENT: 1.0})
        with pytest.raises(errors.WrongState, match="set them yourself"):
            await client.cancel_rollout(begun.id)
        await there.set_split({"chat": 0.0, STUDENT: 1.0})
        back = await client.cancel_rollout(begun.id)
        assert (rollout_state(back), back.reason) == ("cancelled", "it was cancelled after it had succeeded")
        assert await there.split() is None
        assert STUDENT not in await there.models("fresh")


async def test_a_job_is_not_deleted_from_the_moment_that_its_student_is_asked_for(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (app, client):
        rollouts = app.rollouts
        quick, inside, go_on = rollouts._record, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: object) -> Record:
            inside.set()
            await go_on.wait()
            return await quick(*arguments)

        rollouts._record = slow
        publishing = asyncio.create_task(client.publish_student(request(stage_s=20)))
        await inside.wait()
        with pytest.raises(errors.WrongState, match="is being rolled out"):
            await client.delete_distill_job(JOB)
        go_on.set()
        await client.cancel_rollout((await publishing).id)
        assert not rollouts._wanted


async def test_requests_that_name_no_model_go_on_before_during_and_after(tmp_path: Path) -> None:
    async with (
        fleet("good") as alone,
        publisher(tmp_path, alone.router.address) as (_, client),
        Load(alone.channel, 60) as load,
    ):
        begun = await client.publish_student(request(workers=["good"], stages=[0.5, 1.0], stage_requests=5))
        assert (await ended(client, begun.id))[0] == "succeeded"
        before = len(load.outcomes)
        async with asyncio.timeout(10):
            while len(load.outcomes) < before + 20:  # noqa: ASYNC110  # what the load's tasks add to
                await asyncio.sleep(0.02)
        await client.cancel_rollout(begun.id)
    assert load.outcomes and not [one.error for one in load.outcomes if one.error]


async def test_a_student_that_is_still_being_loaded_is_taken_out_when_it_is_there(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(workers=["late"]))
        async with asyncio.timeout(10):
            while STUDENT not in await there.models("late"):  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)
        await client.cancel_rollout(begun.id)
        state, rollout = await ended(client, begun.id)
        assert (state, rollout.reason) == ("cancelled", "it was cancelled")
        assert STUDENT not in await there.models("late")


async def test_what_somebody_else_sets_stays(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request())
        await staged(client, begun.id, 0.05)
        await there.set_split({"chat": 7, STUDENT: 1})
        state, rollout = await ended(client, begun.id)
        assert state == "cancelled"
        assert "changed by somebody else" in rollout.reason
        assert await there.split() == {"chat": 7, STUDENT: 1}
        assert STUDENT in await there.models("fresh")
        await there.set_split({})
        begun = await client.publish_student(request())
        await staged(client, begun.id, 0.05)
        await there.set_split({})  # without the student: it is not needed any more, and was loaded by a roll-out before
        state, rollout = await ended(client, begun.id)
        assert (state, await there.split()) == ("cancelled", None)


async def test_it_goes_on_where_it_stood_when_the_service_was_killed(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, None):
        pass  # it leaves a job
    apart = process(tmp_path, LADR_DISTILLER__ROUTER=there.router.address)
    await apart.start()
    try:
        async with Client(apart.address) as client:
            begun = await client.publish_student(request(request_id="night"))
            await staged(client, begun.id, 0.05)
    finally:
        await apart.kill()
    async with Load(there.channel, 60, model="chat"), publisher(tmp_path, there.router.address) as (_, client):
        assert (await client.publish_student(request(request_id="night"))).id == begun.id
        with pytest.raises(errors.AlreadyExists):
            await client.publish_student(request(request_id="night", error_margin=0.5))
        state, rollout = await ended(client, begun.id)
        assert (state, rollout.share) == ("succeeded", 1), rollout


async def test_a_router_that_forgot_is_told_again(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request())
        await staged(client, begun.id, 0.05)
        await there.router.kill()
        waiting = await until(client, begun.id, lambda one: "no answer" in one.reason)
        assert rollout_state(waiting) == "running"
        with pytest.raises(errors.Unreachable, match="the router does not answer"):
            await client.publish_student(request(name="other"))
        await there.router.start()
        await eligible(there.channel, *there.workers)
        async with Load(there.channel, 60, model="chat"):
            state, rollout = await ended(client, begun.id)
        assert (state, rollout.share) == ("succeeded", 1), rollout


async def test_a_router_that_stays_away_is_not_waited_for_for_ever(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        begun = await client.publish_student(request(timeout_s=1))
        await staged(client, begun.id, 0.05)
        await there.router.kill()
        state, rollout = await ended(client, begun.id)
        assert state == "rolled_back"
        assert "the stage took too long: no answer" in rollout.reason
        assert "look after the shares of 'chat' yourself" in rollout.reason
    await there.router.start()
    await eligible(there.channel, *there.workers)


async def test_what_cannot_be_published_is_refused(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        for wrong, field in [
            ({"name": ""}, "name"),
            ({"model": "x" * 129}, "model"),
            ({"name": "x" * 128, "model": ""}, "model"),
            ({"request_id": "x" * 129}, "request_id"),
            ({"stages": [0.5, 0.5]}, "stages"),
            ({"stages": [0.0]}, "stages"),
            ({"stages": [1.5]}, "stages"),
            ({"stages": [float("nan")]}, "stages"),
            ({"stage_s": -1}, "stage_time"),
            ({"stage_s": 40}, "stage_timeout"),
            ({"error_margin": 2}, "error_margin"),
            ({"latency_ratio": 0}, "latency_ratio"),
            ({"workers": ["fresh", "fresh"]}, "workers"),
        ]:
            with pytest.raises(errors.InvalidRequest) as refused:
                await client.publish_student(request(**wrong))
            assert refused.value.field == field, wrong
        for wrong, error, match in [
            ({"id": "gone"}, errors.NotFound, "no such job"),
            ({"workers": ["gone"]}, errors.NotFound, "no such worker"),
            ({"name": "gone"}, errors.NotFound, "no worker serves"),
            ({"name": "gone", "workers": []}, errors.NotFound, "no worker answers for this name"),
            ({"int8": True}, errors.WrongState, "no INT8 form"),
        ]:
            with pytest.raises(error, match=match):
                await client.publish_student(request(**wrong))
        with pytest.raises(errors.NotFound):
            await client.get_rollout("gone")
        assert await client.rollouts() == []
        begun = await client.publish_student(request(workers=[], stage_s=20))
        assert list(begun.request.workers) == ["good"]
        with pytest.raises(errors.AlreadyExists, match="'chat' is being rolled out"):
            await client.publish_student(request(name="assistant"))
        await client.cancel_rollout(begun.id)


async def test_there_are_no_more_at_once_than_may_be(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (_, client):
        names = [f"name-{number}" for number in range(MOST_LIVE + 1)]
        for name in names:
            await there.set_split({"chat": 1}, name)
        begun = await asyncio.gather(*(client.publish_student(request(name=name, stage_s=20)) for name in names[1:]))
        with pytest.raises(errors.Overloaded):
            await client.publish_student(request(name=names[0]))
        ends = await asyncio.gather(*(client.cancel_rollout(one.id, timeout=20) for one in begun))
        for one in ends:
            assert (await ended(client, one.id))[0] in ("cancelled", "rolled_back")
        for name in names:
            assert await there.split(name) == {"chat": 1}
            await there.set_split({}, name)


async def test_a_list_of_long_rollouts_has_the_newest_that_fit_into_a_message(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts.db")
    asked = MessageToJson(request(workers=[f"worker-{number:0100}" for number in range(1000)]))
    for number in range(60):
        store.note(Record(str(number), asked, "", "chat", {"chat": 1.0}, "students/1", number, number))
    found = Rollouts(store, None, _none, str, 1).list()
    assert 10 < len(found.rollouts) < 60 and found.ByteSize() < 4 << 20
    assert [one.id for one in found.rollouts] == [str(59 - place) for place in range(len(found.rollouts))]


async def test_one_that_goes_on_is_not_taken_back_without_a_router(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts.db")
    store.note(Record("1", MessageToJson(request()), "", "chat", {"chat": 1.0}, "students/1", 1, 1))
    with pytest.raises(errors.WrongState, match=r"distiller\.router"):
        await Rollouts(store, None, _none, str, 1).cancel("1")


async def test_one_that_nobody_drives_yet_is_taken_back(there: Fleet, tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts.db")
    await store.open()
    rollouts = Rollouts(store, there.router.address, _none, str, 1)
    try:
        await store.create(Record("1", MessageToJson(whole(request())), "", "chat", {"chat": 1.0}, "students/1", 1, 1))
        assert rollout_state(await rollouts.cancel("1")) == "cancelled"
    finally:
        await rollouts.finish()
        await store.close()


async def test_the_same_call_twice_at_once_is_one_rollout(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address) as (app, client):
        rollouts = app.rollouts
        quick, inside, go_on = rollouts._find_job, asyncio.Event(), asyncio.Event()

        async def slow(job_id: str) -> pb.DistillJob:
            inside.set()
            await go_on.wait()
            return await quick(job_id)

        rollouts._find_job = slow
        first = asyncio.create_task(client.publish_student(request(request_id="once", stage_s=20)))
        await inside.wait()
        rollouts._find_job = quick
        second = await client.publish_student(request(request_id="once", stage_s=20))
        go_on.set()
        assert (await first).id == second.id
        await client.cancel_rollout(second.id)


async def _none(job_id: str) -> pb.DistillJob:
    raise errors.NotFound(job_id)


async def test_a_service_without_a_router_says_so(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, None) as (_, client):
        with pytest.raises(errors.WrongState, match=r"distiller\.router"):
            await client.publish_student(request())


async def test_watches_are_bounded_and_end_with_the_service(there: Fleet, tmp_path: Path) -> None:
    async with publisher(tmp_path, there.router.address, max_watchers=1) as (app, client):
        begun = await client.publish_student(request())
        watch = client.watch_rollout(begun.id)
        assert (await anext(watch)).id == begun.id
        with pytest.raises(errors.Overloaded):
            await anext(client.watch_rollout(begun.id))
        app.rollouts.close()
        with pytest.raises(errors.Draining):
            async for _ in watch:
                pass
        with pytest.raises(errors.Draining):
            await client.cancel_rollout(begun.id)
        app.rollouts.controller.cancel(begun.id)
        await ended(client, begun.id)


def _metrics(app: object) -> str:
    from prometheus_client import generate_latest

    return generate_latest(app.server.registry).decode()  # type: ignore[attr-defined]
