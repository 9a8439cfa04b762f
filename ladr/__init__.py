"""LADR: latency-aware dynamic routing for language models.

async with ladr.Client("127.0.0.1:50051") as client:
    async for piece in client.generate("Name three rivers.").text():
        print(piece, end="")
"""

from ladr.answer import Answer, Event
from ladr.client import Client
from ladr.errors import LadrError
from ladr.job_calls import job_request
from ladr.stream import Generation, Stream
from ladr.sync_client import SyncClient
from ladr.sync_stream import SyncGeneration, SyncStream
from ladr.v1.generation_pb2 import Delta, Finished, Started

__all__ = [
    "Answer",
    "Client",
    "Delta",
    "Event",
    "Finished",
    "Generation",
    "LadrError",
    "Started",
    "Stream",
    "SyncClient",
    "SyncGeneration",
    "SyncStream",
    "job_request",
]
