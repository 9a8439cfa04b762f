"""From the engine's pieces to messages: nothing lost, repeated or out of place, and tokens that wait for company."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.errors import EngineFailed
from ladr.v1 import generation_pb2
from services.worker.engine import End, Piece, TokenLogprob
from services.worker.messages import MAX_PIECES, Times, messages
from services.worker.outbox import Ended, Outbox
from services.worker.slots import Load

LATER_S = 60.0
TIMES = Times(0.0, last_s=1.0)
pieces = st.lists(
    st.builds(
        lambda text, n, ids, logprobs: Piece(
            text,
            tuple(range(n)) if ids else (),
            n,
            tuple(TokenLogprob(i, "", -1.0) for i in range(n)) if logprobs else (),
        ),
        st.text(max_size=5),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


def ended(tokens: int) -> Ended:
    return Ended(End("stop", 1, tokens), Load(3, 2, 9))


@given(pieces, st.integers(0, 5), st.integers(1, 8))
def test_tokens_that_wait_together_are_merged_and_stay_aligned_with_their_ids(
    waiting: list[Piece], begun: int, batch: int
) -> None:
    async def collect() -> list[generation_pb2.GenerateResponse]:
        outbox = Outbox(batch, LATER_S)
        for event in (*waiting, ended(begun + sum(p.count for p in waiting))):
            outbox.put(event)
        return [message async for message in messages(outbox, TIMES, begun)]

    *deltas, last = asyncio.run(collect())
    assert last.finished.resumed == (begun > 0)
    assert last.finished.load == generation_pb2.Load(running=3, queued=2, revision=9)
    assert "".join(m.delta.text for m in deltas) == "".join(p.text for p in waiting)
    offset = begun
    for message in deltas:
        delta = message.delta
        assert delta.offset == offset
        offset += delta.token_count
        assert len(delta.token_ids) in (0, delta.token_count)
        assert len(delta.logprobs) in (0, delta.token_count)
    assert offset == begun + sum(p.count for p in waiting)
    assert [i for m in deltas for i in m.delta.token_ids] == [i for p in waiting for i in p.token_ids]


@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 400), st.integers(1, 64))
def test_tokens_that_come_while_a_message_is_written_are_not_lost(arrivals: list[int], burst: int, batch: int) -> None:
    """While the reader takes a message, `arrivals[i]` further tokens come; then a burst and the end."""

    async def collect() -> None:
        outbox = Outbox(batch, 1e-4)
        total = 0
        seen: list[int] = []

        def arrive(count: int) -> None:
            nonlocal total
            for token in range(total, total + count):
                outbox.put(Piece("x", (token,)))
            total += count

        arrive(1)
        waiting = [*arrivals, burst]
        finished = 0
        async for message in messages(outbox, TIMES):
            if message.WhichOneof("event") == "finished":
                finished += 1
                continue
            assert message.delta.offset == len(seen)
            assert message.delta.token_count <= MAX_PIECES
            seen.extend(message.delta.token_ids)
            if waiting:
                arrive(waiting.pop(0))
                if not waiting:
                    outbox.put(ended(total))
        assert seen == list(range(total))
        assert finished == 1

    asyncio.run(collect())


async def due(outbox: Outbox) -> int:
    """How many events may be taken now; 0 while what is there has to wait."""
    taking = asyncio.create_task(outbox.take())
    for _ in range(5):
        await asyncio.sleep(0)
    if taking.done():
        return len(taking.result())
    taking.cancel()
    await asyncio.wait({taking})
    return 0


async def test_the_first_token_waits_for_nothing_and_the_next_ones_for_each_other() -> None:
    outbox = Outbox(4, LATER_S)
    outbox.put(Piece("a"))
    assert await due(outbox) == 1
    for text in "bcd":
        outbox.put(Piece(text))
        assert await due(outbox) == 0
    outbox.put(Piece("e"))
    assert await due(outbox) == 4
    outbox.put(Piece("fgh", (), 3))
    assert await due(outbox) == 0
    outbox.put(Piece("ij", (), 2))
    assert await due(outbox) == 2


@pytest.mark.parametrize("event", [ended(2), EngineFailed("it broke")])
async def test_an_end_and_an_error_let_go_of_what_waits(event: Ended | EngineFailed) -> None:
    outbox = Outbox(64, LATER_S)
    outbox.put(Piece("a"))
    await outbox.take()
    outbox.put(Piece("b"))
    outbox.put(event)
    assert await due(outbox) == 2


async def test_a_token_waits_no_longer_than_the_delay() -> None:
    outbox = Outbox(64, 0.005)
    for text in ("a", "b", "c"):
        outbox.put(Piece(text))
        assert await asyncio.wait_for(outbox.take(), 10) == [Piece(text)]


async def test_without_batching_each_token_goes_at_once() -> None:
    outbox = Outbox()
    for piece in (Piece("a"), Piece("b"), Piece("held", (), 0)):
        outbox.put(piece)
        assert await due(outbox) == 1
