"""A real model's answer that survives its worker, token for token."""

from __future__ import annotations

import asyncio
import signal

import pytest

import ladr
from tests.load import channel_to, eligible
from tests.processes import Process, mesh

TRANSFORMERS = {
    "LADR_WORKER__ENGINE": "transformers",
    "LADR_WORKER__MODELS": '[{"name": "smollm2-135m"}]',
    "LADR_WORKER__DTYPE": "float32",
    "LADR_WORKER__SLOTS": "4",
}
PROMPTS = ("Why is the sky blue?", "Name three rivers.", "What does a router do?")


def pick(workers: list[Process], worker_id: str) -> Process:
    return workers[int(worker_id.removeprefix("worker-")) - 1]


@pytest.mark.timeout(300)
async def test_greedy_answers_of_the_bundled_model_are_the_undisturbed_ones_though_their_worker_is_killed() -> None:
    pytest.importorskip("torch", reason="the transformers engine is installed apart")
    async with mesh(2, worker=TRANSFORMERS, start_s=200) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1", "worker-2", within_s=200)
        async with ladr.Client(m.router.address) as client:
            ask = {"temperature": 0, "max_tokens": 24}
            undisturbed = [await client.complete(prompt, **ask) for prompt in PROMPTS]
            streams = [client.generate(prompt, **ask) for prompt in PROMPTS]
            for stream in streams:  # each has some of its answer
                while not isinstance(await anext(stream), ladr.Delta):
                    pass
            assert streams[0].started
            pick(m.workers, streams[0].started.worker_id).send(signal.SIGKILL)
            answers = await asyncio.gather(*(stream.answer() for stream in streams))
        for before, after in zip(undisturbed, answers, strict=True):
            assert (after.text, after.token_ids, after.reason) == (before.text, before.token_ids, before.reason)
        assert answers[0].resumed
