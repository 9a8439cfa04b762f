"""A name that is shared between models while the router runs, and what each of them makes of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ladr
from ladr.config import RouterSettings
from ladr.errors import InvalidRequest, LadrError, NotFound, Overloaded, WrongState
from ladr.routing.models import MAX_SHARERS, MAX_SPLITS, Models
from ladr.routing.wire import tokens_after
from ladr.v1 import router_pb2, router_pb2_grpc
from ladr.v1.generation_pb2 import Delta, Finished, GenerateResponse, Usage
from services.router.splits import Splits
from services.router.tally import Tally
from tests.load import channel_to, eligible
from tests.processes import SIMULATED, Process, mesh


def splits(processes: int = 1, served: frozenset[str] = frozenset({"old", "new"}), **fields: object) -> Splits:
    settings = RouterSettings(**fields)  # type: ignore[arg-type]
    return Splits(Models(settings, served.__contains__, lambda: served), {"new": Tally(succeeded=3)}, processes)


def test_shares_are_as_they_were_set_and_go_back_to_the_configuration() -> None:
    canaries = {"chat": {"old": 1.0}}
    held = splits(canaries=canaries)
    assert dict(held.get("chat").shares) == canaries["chat"]
    assert dict(held.set("chat", {"old": 95, "new": 5}).shares) == {"old": 95, "new": 5}
    assert [t.succeeded_total for t in held.get("chat").tallies] == [3, 0]  # by name: new, old
    assert dict(held.set("chat", {}).shares) == canaries["chat"]
    held.set("other", {"new": 1})
    assert not held.set("other", {}).shares
    with pytest.raises(NotFound):
        held.get("other")


def test_an_alias_is_shared_as_the_model_that_it_stands_for() -> None:
    held = splits(aliases={"assistant": "old"})
    with pytest.raises(NotFound) as none:
        held.get("assistant")
    assert none.value.resource == ("split", "old")
    assert held.set("assistant", {"old": 1, "new": 1}).alias == "old"
    assert held.get("assistant") == held.get("old")
    held.set("assistant", {})
    with pytest.raises(NotFound):
        held.get("old")


def models(served: str, **fields: object) -> Models:
    names = frozenset(served.split())
    return Models(RouterSettings(**fields), names.__contains__, lambda: names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("served", "split", "answer"),
    [
        ("old", {}, "old"),
        ("old new", {"old": {"old": 0, "new": 1}}, "new"),  # a new one that takes all of an old one's requests
        ("old new", {"old": {"old": 1, "new": 0}}, "old"),
        ("old new", {"beside": {"old": 1, "new": 0}}, "old"),  # loaded, and not asked yet
        ("new", {"old": {"old": 0, "new": 1}}, "new"),
    ],
)
def test_a_request_that_names_no_model_has_the_one_that_is_no_share_of_another(
    served: str, split: dict[str, dict[str, float]], answer: str
) -> None:
    for _ in range(20):
        assert models(served, canaries=split).resolve("", Random()).model == answer


@pytest.mark.parametrize("split", [{}, {"chat": {"old": 1, "new": 1}}])
def test_between_several_models_a_request_has_to_choose(split: dict[str, dict[str, float]]) -> None:
    with pytest.raises(InvalidRequest, match="default_model") as error:
        models("old new", canaries=split).resolve("", Random())
    assert error.value.field == "model"


@pytest.mark.parametrize(
    ("name", "shares", "error"),
    [
        ("", {"old": 1}, InvalidRequest),
        ("x" * 129, {"old": 1}, InvalidRequest),
        ("chat", {"old": -1, "new": 2}, InvalidRequest),
        ("chat", {"old": float("nan")}, InvalidRequest),
        ("chat", {"old": float("inf")}, InvalidRequest),
        ("chat", {"old": 0}, InvalidRequest),
        ("chat", {f"m{n}": 1 for n in range(MAX_SHARERS + 1)}, InvalidRequest),
        ("chat", {"old": 1, "gone": 1}, NotFound),
    ],
)
def test_shares_that_are_none_are_refused_and_change_nothing(
    name: str, shares: dict[str, float], error: type[LadrError]
) -> None:
    held = splits(canaries={"chat": {"old": 1.0}})
    with pytest.raises(error):
        held.set(name, shares)
    assert dict(held.get("chat").shares) == {"old": 1.0}


def test_there_is_room_for_so_many_names_and_none_where_only_one_process_would_hear() -> None:
    held = splits()
    for number in range(MAX_SPLITS):
        held.set(f"name-{number}", {"new": 1})
    with pytest.raises(Overloaded):
        held.set("one more", {"new": 1})
    held.set("name-0", {"old": 1})
    with pytest.raises(WrongState):
        splits(processes=2).set("chat", {"new": 1})


def test_a_tally_leaves_out_what_is_not_the_models_fault() -> None:
    tally = Tally()
    for outcome in ("ok", "ok", "cancelled", "invalid_request", "engine_failed", "overloaded", "deadline_exceeded"):
        tally.ended(outcome)
    assert (tally.succeeded, tally.failed) == (2, 3)


@given(st.lists(st.floats(1e-3, 100), max_size=30), st.lists(st.tuples(st.floats(1e-3, 100), st.integers(1, 9))))
def test_a_tally_sums_the_logarithms_of_times_and_their_squares(
    firsts_s: list[float], answers: list[tuple[float, int]]
) -> None:
    tally = Tally()
    for took_s in firsts_s:
        tally.first_token(took_s)
    for took_s, tokens in answers:
        tally.finished(took_s, tokens)
    told = tally.message("new")
    assert told.time_to_first_token.count == len(firsts_s)
    for sums, times_s in [
        (told.time_to_first_token_logs, firsts_s),
        (told.time_per_output_token_logs, [took_s / tokens for took_s, tokens in answers]),
    ]:
        logs = [math.log(one) for one in times_s]
        assert (sums.count, sums.sum) == (len(logs), pytest.approx(math.fsum(logs), abs=1e-9))
        assert sums.sum_of_squares == pytest.approx(math.fsum(log**2 for log in logs), abs=1e-9)


def test_tokens_that_came_at_once_count_as_a_tenth_of_a_millisecond_each() -> None:
    tally = Tally()
    tally.finished(0.0, 5)
    assert tally.output_tokens.total == pytest.approx(math.log(1e-4))


@pytest.mark.parametrize(("first", "completion", "after"), [(1, 5, 4), (3, 5, 2), (1, 1, 0), (2, 0, 0)])
def test_the_tokens_after_the_first_piece_of_an_answer_are_counted(first: int, completion: int, after: int) -> None:
    delta = GenerateResponse(delta=Delta(text="a", token_count=first)).SerializeToString()
    end = GenerateResponse(finished=Finished(usage=Usage(completion_tokens=completion))).SerializeToString()
    assert tokens_after(delta, end) == after
    assert tokens_after(end, end) == 0  # no piece before the end


@asynccontextmanager
async def two_models() -> AsyncIterator[tuple[str, router_pb2_grpc.RouterStub]]:
    """A router with "sim" on one worker, and "new", which fails at everything, on another."""
    async with mesh(1) as m, channel_to(m.router.address) as channel:
        broken = {"LADR_WORKER__ID": "broken", "LADR_WORKER__SIMULATED__FAIL_RATIO": "1"}
        models = {"LADR_WORKER__MODELS": '[{"name": "new"}]'}
        worker = Process("worker", {**SIMULATED, "LADR_WORKER__BUS": m.bus.address, **broken, **models})
        try:
            await worker.start()
            await eligible(channel, "worker-1", "broken")
            yield m.router.address, router_pb2_grpc.RouterStub(channel)
        finally:
            await worker.kill()


@pytest.mark.parametrize("lookaside", [False, True], ids=["proxied", "look-aside"])
async def test_clients_follow_a_split_at_once_and_the_tallies_show_who_fails(lookaside: bool) -> None:
    async with two_models() as (address, stub), ladr.Client(address, lookaside=lookaside) as client:
        await client.complete("x", model="sim")
        await stub.SetSplit(router_pb2.SetSplitRequest(alias="chat", shares={"sim": 1}))
        for _ in range(5):
            assert (await client.complete("x", model="chat")).model == "sim"
        await stub.SetSplit(router_pb2.SetSplitRequest(alias="chat", shares={"sim": 0, "new": 1}))
        for _ in range(5):
            with pytest.raises(LadrError):
                await client.complete("x", model="chat")
        split = await stub.GetSplit(router_pb2.GetSplitRequest(alias="chat"))
        new, sim = split.tallies
        assert (new.model, new.succeeded_total, new.failed_total) == ("new", 0, 5)
        assert (sim.model, sim.failed_total) == ("sim", 0)
        assert sim.succeeded_total == sim.time_to_first_token.count >= 5
        assert sim.time_to_first_token_logs.count == sim.time_per_output_token_logs.count == sim.succeeded_total
        paces = sim.time_per_output_token_logs
        assert 0 < math.exp(paces.sum / paces.count) < 10  # seconds
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SetSplit(router_pb2.SetSplitRequest(alias="chat", shares={"nobody": 1}))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
