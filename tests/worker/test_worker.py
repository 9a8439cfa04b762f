"""The worker's own arithmetic: deltas, rates, and a start that fails."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine import End, Piece, TokenLogprob
from services.worker.stats import Stats
from services.worker.worker import MAX_PIECES, Inbox, _messages, _Times
from tests.processes import ROOT

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


@given(pieces)
def test_tokens_that_wait_together_are_merged_and_stay_aligned_with_their_ids(waiting: list[Piece]) -> None:
    inbox: Inbox = deque([*waiting, End("stop", 1, sum(p.count for p in waiting))])

    async def collect() -> list:
        news = asyncio.Event()
        news.set()
        return [message async for message in _messages(inbox, news, _Times(0.0, last_s=1.0))]

    *deltas, last = asyncio.run(collect())
    assert last.WhichOneof("event") == "finished"
    assert "".join(m.delta.text for m in deltas) == "".join(p.text for p in waiting)
    offset = 0
    for message in deltas:
        delta = message.delta
        assert delta.offset == offset
        offset += delta.token_count
        assert len(delta.token_ids) in (0, delta.token_count)
        assert len(delta.logprobs) in (0, delta.token_count)
    assert offset == sum(p.count for p in waiting)
    assert [i for m in deltas for i in m.delta.token_ids] == [i for p in waiting for i in p.token_ids]


@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 400))
def test_tokens_that_come_while_a_message_is_written_are_not_lost(arrivals: list[int], burst: int) -> None:
    """While the reader takes a message, `arrivals[i]` further tokens come; in the end a burst and the end."""

    async def collect() -> tuple[list[int], int, int]:
        inbox: Inbox = deque()
        news = asyncio.Event()
        made = iter(range(10_000))
        total = 0

        def arrive(count: int) -> None:
            nonlocal total
            total += count
            inbox.extend(Piece("x", (next(made),)) for _ in range(count))
            news.set()

        arrive(1)
        waiting = list(arrivals)
        seen: list[int] = []
        finished = largest = 0
        async for message in _messages(inbox, news, _Times(0.0, last_s=1.0)):
            if message.WhichOneof("event") == "finished":
                finished += 1
                continue
            assert message.delta.offset == len(seen)
            seen.extend(message.delta.token_ids)
            largest = max(largest, message.delta.token_count)
            if waiting:
                arrive(waiting.pop(0))
            elif burst and total < 10_000 and not any(isinstance(event, End) for event in inbox):
                arrive(burst)
                inbox.append(End("stop", 1, total))
        assert seen == list(range(total))
        return seen, finished, largest

    _, finished, largest = asyncio.run(collect())
    assert finished == 1
    assert largest <= MAX_PIECES


def test_tokens_per_second_are_those_of_the_last_second() -> None:
    stats = Stats()
    stats.generated(50, 10.0)
    assert stats.tokens_per_second(10.1) == 50
    assert stats.tokens_per_second(11.2) == 0
    for step in range(30):
        stats.generated(1, 20 + step / 10)
    assert abs(stats.tokens_per_second(22.95) - 10) <= 1


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = {**os.environ, "LADR_WORKER__ENGINE": "simulated", "LADR_WORKER__PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-m", "services.worker"], env=environment, cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"worker: port {port} on 127.0.0.1 is in use or not ours; set another port"
    ]
