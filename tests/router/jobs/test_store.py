"""What every store does, tried on both kinds."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from ladr.errors import AlreadyExists, JobsUnavailable, Overloaded
from services.router.jobs.machine import Cancel, Fail, GiveBack, Job, Limits, Refused, Requeue, Stale, Succeed
from services.router.jobs.store import Kept, Store, Taken
from tests.router.jobs.stores import LIMITS, Home, cut_short, draft, everything, routers, submit

LOST = -1  # a lease that has always ended


async def answered(store: Store, taken: Taken, text: bytes = b"!") -> Job | None:
    return await store.apply(taken.job.id, Succeed(taken.job.token, 1, text, b"result"))


async def test_a_job_is_queued_taken_answered_and_found_with_its_answer(home: Home) -> None:
    async with home.router() as store:
        (kept,) = await submit(store, draft("a"))
        assert kept.new
        assert kept.job.state == "queued"
        (taken,) = await store.claim(5)
        assert (taken.request, taken.job.attempts, taken.job.state) == (b"request of a", 1, "running")
        assert await store.claim(5) == []
        await store.append("a", taken.job.token, 0, b"one")
        await store.append("a", taken.job.token, 1, b"two")
        job = await store.apply("a", Succeed(taken.job.token, 3, b"three", b"result"))
        assert job
        assert job.state == "succeeded"
        assert await store.result("a") == b"result"
        look = await store.look("a", 1, 10)
        assert look
        assert look[1] == [b"two", b"three"]


async def test_the_same_name_with_the_same_request_is_the_same_job_and_with_another_is_refused(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        again, other, new = await store.submit([draft("a"), draft("a", digest="other"), draft("b")])
        assert isinstance(again, Kept)
        assert not again.new
        assert isinstance(other, AlreadyExists)
        assert other.resource == ("generation", "a")
        assert isinstance(new, Kept)
        assert new.new
        assert len(await everything(store)) == 2


async def test_urgent_jobs_are_taken_first_and_else_as_they_came(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("c1"), draft("c2"), draft("b", priority=2), draft("a", priority=1))
        assert [taken.job.id for taken in await store.claim(3)] == ["a", "b", "c1"]
        assert [taken.job.id for taken in await store.claim(3)] == ["c2"]


async def test_an_attempt_whose_lease_ended_is_made_again_and_its_result_does_not_count(home: Home) -> None:
    async with AsyncExitStack() as stack:
        first, second = await routers(stack, home, [LOST, LOST])
        await submit(first, draft("a"))
        (old,) = await first.claim(1)
        await first.append("a", old.job.token, 0, b"old")
        home.pass_time(0.001)
        (new,) = await second.reclaim(1)
        assert (new.job.attempts, new.job.redeliveries, new.request) == (2, 1, b"request of a")
        assert not await first.beat("a", old.job.token)
        with pytest.raises(Stale):
            await first.append("a", old.job.token, 1, b"old")
        with pytest.raises(Stale):
            await answered(first, old)
        assert await answered(second, new, b"new")
        with pytest.raises(Stale):
            await answered(first, old)
        look = await first.look("a", 0, 10)
        assert look
        assert look[1] == [b"new"]


async def test_a_lease_that_is_renewed_does_not_end(home: Home) -> None:
    async with AsyncExitStack() as stack:
        first, second = await routers(stack, home, [10_000, 10_000])
        await submit(first, draft("a"))
        (taken,) = await first.claim(1)
        for _ in range(3):
            home.pass_time(6)
            assert await first.beat("a", taken.job.token)
            assert await second.reclaim(1) == []
        assert await answered(first, taken)


async def test_a_success_that_is_told_twice_is_taken_once(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        (taken,) = await store.claim(1)
        once, twice = await answered(store, taken), await answered(store, taken)
        assert once == twice
        look = await store.look("a", 0, 10)
        assert look
        assert look[1] == [b"!"]


async def test_a_piece_that_is_told_twice_is_kept_once_and_an_answer_with_a_gap_is_not_taken(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        (taken,) = await store.claim(1)
        for _ in range(2):
            await store.append("a", taken.job.token, 0, b"one")
        with pytest.raises(Stale):
            await store.append("a", taken.job.token, 2, b"three")
        with pytest.raises(Stale):
            await store.apply("a", Succeed(taken.job.token, 3, b"three", b""))
        assert await store.apply("a", Succeed(taken.job.token, 2, b"two", b""))


async def test_a_job_that_fails_is_tried_again_after_a_pause_and_given_up_after_its_last_attempt(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        for attempt in range(1, LIMITS.attempts + 1):
            (taken,) = await store.claim(1)
            assert taken.job.attempts == attempt
            job = await store.apply("a", Fail(taken.job.token, ("ENGINE_FAILED", "it broke"), pause_ms=1000))
            assert job
            if attempt < LIMITS.attempts:
                assert job.state == "scheduled"
                await store.sweep(10)
                assert await store.claim(1) == []
                home.pass_time(1.1)
                await store.sweep(10)
        assert (job.state, job.error) == ("dead", ("ENGINE_FAILED", "it broke"))
        assert [dead.id for dead in (await store.page("dead", 0, 10)).jobs] == ["a"]
        await store.apply("a", Requeue())
        (taken,) = await store.claim(1)
        assert taken.job.attempts == LIMITS.attempts + 1
        assert await answered(store, taken)


async def test_a_job_whose_routers_die_each_time_is_given_up(home: Home) -> None:
    async with home.router(LOST) as store:
        await submit(store, draft("a"))
        await store.claim(1)
        for _ in range(LIMITS.attempts):
            home.pass_time(0.001)
            await store.reclaim(1)
        job = await store.get("a")
        assert job
        assert (job.state, job.attempts, job.error[0]) == ("dead", LIMITS.attempts, "ATTEMPTS_LOST")
        assert await store.reclaim(1) == []


async def test_a_job_that_is_given_back_loses_no_attempt(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        for number in range(1, 2 * LIMITS.attempts):
            (taken,) = await store.claim(1)
            assert taken.job.attempts == number  # though each has a number of its own
            await store.apply("a", GiveBack(taken.job.token))
        (taken,) = await store.claim(1)
        assert await answered(store, taken)


async def test_a_cancelled_job_is_not_taken_and_what_comes_after_does_not_count(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"), draft("b"))
        (taken,) = await store.claim(1)
        for name in "ab":
            job = await store.apply(name, Cancel())
            assert job
            assert job.state == "cancelled"
        assert not await store.beat("a", taken.job.token)
        with pytest.raises(Stale):
            await answered(store, taken)
        assert await store.claim(5) == []
        assert await store.apply("nobody", Cancel()) is None
        with pytest.raises(Refused):
            await store.apply("a", Requeue())


async def test_time_makes_a_job_due_expired_and_forgotten(home: Home) -> None:
    async with home.router() as store:
        now_ms = store.now_ms()
        due = draft("due", state="scheduled", due_ms=now_ms + 5000)
        short = draft("short", expires_ms=now_ms + 5000)
        busy = draft("busy", priority=1, expires_ms=now_ms + 5000)
        await submit(store, due, short, busy)
        (taken,) = await store.claim(1)
        assert taken.job.id == "busy"
        home.pass_time(5.1)
        await store.sweep(10)
        states = {name: job.state for name, job in (await everything(store)).items()}
        assert states == {"due": "queued", "short": "expired", "busy": "expired"}
        assert not await store.beat("busy", taken.job.token)
        assert [taken.job.id for taken in await store.claim(5)] == ["due"]
        home.pass_time(LIMITS.retention_ms / 1000 + 1)
        await store.sweep(10)
        assert list(await everything(store)) == ["due"]
        assert await store.look("short", 0, 1) is None


async def test_only_a_job_that_has_ended_can_be_deleted_and_nothing_is_left_of_it(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        with pytest.raises(Refused):
            await store.delete("a")
        (taken,) = await store.claim(1)
        await answered(store, taken)
        assert await store.delete("a")
        assert not await store.delete("a")
        assert await store.get("a") is None
        assert await store.result("a") == b""
        (kept,) = await submit(store, draft("a", digest="other"))
        assert kept.new
        assert (await store.claim(1))[0].job.id == "a"


async def test_pages_hold_every_job_once_in_the_order_of_acceptance(home: Home) -> None:
    async with home.router() as store:
        names = [f"{n:02}" for n in range(23)]
        await submit(store, *(draft(name) for name in names))
        assert list(await everything(store)) == names
        await store.claim(3)
        census = await store.census()
        assert (census.states["queued"], census.states["running"], census.states["dead"]) == (20, 3, 0)
        assert census.oldest_ms == 1_700_000_000_000
        assert [job.id for job in (await store.page("running", 0, 9)).jobs] == names[:3]


async def test_no_more_jobs_wait_than_may(home: Home) -> None:
    async with home.router(max_live=2) as store:
        first, second, third = await store.submit([draft("a"), draft("b"), draft("c")])
        assert isinstance(first, Kept)
        assert isinstance(second, Kept)
        assert isinstance(third, Overloaded)
        assert third.retry_after
        (again,) = await store.submit([draft("a")])
        assert isinstance(again, Kept)
        (taken, *_) = await store.claim(1)
        await answered(store, taken)
        await submit(store, draft("c"))


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("after", range(4))
async def test_a_submission_that_was_not_confirmed_can_be_repeated(home: Home, after: int, done: bool) -> None:
    async with home.router() as store:
        cut = cut_short(store)
        cut.after, cut.done = after, done
        for _ in range(3):
            try:
                await submit(store, draft("a"))
            except JobsUnavailable:
                continue
        cut.after = None
        assert list(await everything(store)) == ["a"]
        assert [taken.job.id for taken in await store.claim(5)] == ["a"]


async def test_jobs_outlive_every_router(home: Home) -> None:
    async with home.router() as store:
        await submit(store, draft("a"))
        await store.claim(1)
        await submit(store, draft("b"))
    async with home.router(LOST, Limits()) as store:
        home.pass_time(0.001)
        assert [taken.job.id for taken in await store.claim(5)] == ["b"]
        assert {taken.job.id for taken in await store.reclaim(5)} >= {"a"}
