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
from services.worker.worker import Inbox, _messages, _Times
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
