"""A worker without an engine: streams messages made beforehand, so that it is never what a measurement waits for.

`python -m benchmarks.raw_worker BUS` serves ladr.v1.Worker/Generate on a free port, reports to that bus, prints its port and
ends with the process that started it. A request's `sampling.max_tokens` says how many tokens it sends; its prompt is two
numbers: how many milliseconds lie between two messages (0: none, as fast as the stream takes them), and how many tokens
each carries, as a worker with that `worker.batch_tokens` sends them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import grpc
import uuid_utils
import uvloop

from benchmarks.helper import end_with_parent
from ladr.v1 import fleet_pb2, generation_pb2
from services.common.server import server_options
from services.worker.reporter import Reporter

NAME = MODEL = "raw"
MOST = 1_000  # tokens of one answer
BATCHES = (1, 8)  # tokens of a message


async def main(bus: str) -> None:
    server = grpc.aio.server(options=server_options(64 << 20))
    generate = grpc.unary_stream_rpc_method_handler(_generate, generation_pb2.GenerateRequest.FromString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ladr.v1.Worker", {"Generate": generate}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    incarnation = str(uuid_utils.uuid7())

    def report(sequence: int) -> fleet_pb2.WorkerReport:
        return fleet_pb2.WorkerReport(
            worker_id=NAME,
            incarnation=incarnation,
            sequence=sequence,
            address=f"127.0.0.1:{port}",
            state=fleet_pb2.WORKER_STATE_READY,
            models=[fleet_pb2.ModelStatus(name=MODEL, state=fleet_pb2.MODEL_STATE_READY)],
            slots=1024,
        )

    Reporter(report, [bus], timedelta(milliseconds=200)).start()
    print(port, flush=True)
    await server.wait_for_termination()


async def _generate(request: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    gap_ms, tokens = map(int, request.prompt.split())
    yield _STARTED
    due_s = time.monotonic()
    for delta in itertools.islice(_DELTAS[tokens], request.sampling.max_tokens // tokens):
        if gap_ms:
            due_s += gap_ms / 1e3
            await asyncio.sleep(due_s - time.monotonic())
        yield delta
    yield _FINISHED


def _delta(offset: int, tokens: int) -> bytes:
    delta = generation_pb2.Delta(text=" word" * tokens, token_ids=[1000] * tokens, offset=offset, token_count=tokens)
    data: bytes = _Event(delta=delta).SerializeToString()
    return data


_Event = generation_pb2.GenerateResponse
_STARTED = _Event(started=generation_pb2.Started(worker_id=NAME, model=MODEL, attempt=1)).SerializeToString()
_FINISHED = _Event(finished=generation_pb2.Finished(reason=generation_pb2.FINISH_REASON_LENGTH)).SerializeToString()
_DELTAS = {tokens: [_delta(offset, tokens) for offset in range(0, MOST, tokens)] for tokens in BATCHES}

if __name__ == "__main__":
    end_with_parent()
    uvloop.run(main(sys.argv[1]))
