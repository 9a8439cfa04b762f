"""`ladr jobs` against a mesh that keeps jobs, and the lines of batch files by themselves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ladr import Client, SyncClient, job_request
from ladr.cli.batch import line_of, read_line
from ladr.errors import AlreadyExists, InvalidRequest, WrongState
from ladr.v1 import generation_pb2, generations_pb2
from tests.load import channel_to, eligible
from tests.processes import ROOT, Mesh, mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    jobs = {
        "LADR_ROUTER__JOBS__STORE": "sqlite",
        "LADR_ROUTER__JOBS__PATH": str(tmp_path_factory.mktemp("jobs") / "jobs.db"),
    }
    async with mesh(1, router=jobs) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        yield m


async def jobs(fleet: Mesh, *arguments: str, stdin: str = "") -> tuple[int | None, str, str]:
    command, *rest = arguments
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ladr", "jobs", command, "--address", fleet.router.address, *rest),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    out, err = await process.communicate(stdin.encode())
    return process.returncode, out.decode(), err.decode()


def entry(custom_id: str, **body: Any) -> str:
    body = {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 5, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


async def test_a_job_is_submitted_watched_and_shown(fleet: Mesh) -> None:
    code, out, err = await jobs(fleet, "submit", "hello", "--id", "cli-1", "--max-tokens", "4")
    assert (code, out) == (0, "cli-1\n"), err
    code, watched, _ = await jobs(fleet, "watch", "cli-1")
    assert code == 0
    code, out, _ = await jobs(fleet, "get", "cli-1")
    assert code == 0
    assert "succeeded" in out
    assert watched.strip() in out
    code, out, _ = await jobs(fleet, "get", "cli-1", "-o", "json")
    assert json.loads(out)["result"]["text"] == watched.removesuffix("\n")
    code, out, err = await jobs(fleet, "submit", "another prompt", "--id", "cli-1")
    assert code == 1
    assert "another name" in err


async def test_a_job_is_cancelled_and_lists_tell_of_it(fleet: Mesh) -> None:
    await jobs(fleet, "submit", "hello", "--id", "cli-2", "--after", "2h")
    code, out, _ = await jobs(fleet, "list", "--state", "scheduled")
    assert code == 0
    assert [row.split("\t")[0] for row in out.splitlines()] == ["NAME", "cli-2"]
    code, out, _ = await jobs(fleet, "cancel", "cli-2", "-o", "json")
    assert json.loads(out)["state"] == "GENERATION_STATE_CANCELLED"
    code, _, err = await jobs(fleet, "requeue", "cli-2")
    assert code == 1
    assert "not dead" in err
    code, _, err = await jobs(fleet, "get", "nobody")
    assert (code, len(err.splitlines())) == (1, 1)


async def test_a_batch_file_goes_in_and_its_answers_come_out(fleet: Mesh, tmp_path: Path) -> None:
    lines = [*(entry(f"line-{n}") for n in range(30)), "", "no JSON", entry("odd", tools=[])]
    code, out, err = await jobs(fleet, "import", "-", "--prefix", "batch/", stdin="\n".join(lines))
    assert code == 1
    assert out == "30 accepted, 0 there already, 2 refused\n"
    assert [row.split(":")[0] for row in err.splitlines()] == ["line 32", "line 33"]
    code, out, _ = await jobs(fleet, "import", "-", "--prefix", "batch/", "-o", "json", stdin="\n".join(lines[:30]))
    assert (code, json.loads(out)) == (0, {"accepted": 0, "existing": 30, "refused": 0})
    async with Client(fleet.router.address) as client, asyncio.timeout(30):
        for n in range(30):
            async for _ in client.watch_generation(f"batch/line-{n}"):
                pass
    file = tmp_path / "out.jsonl"
    code, _, err = await jobs(fleet, "export", "--prefix", "batch/", "--file", str(file))
    assert code == 0, err
    found = [json.loads(row) for row in file.read_text().splitlines()]
    assert [row["custom_id"] for row in found] == [f"line-{n}" for n in range(30)]
    for row in found:
        assert row["error"] is None
        assert row["response"]["body"]["choices"][0]["message"]["content"]
        assert row["response"]["body"]["usage"]["completion_tokens"] == 5


async def test_the_clients_have_the_same_methods_for_jobs(fleet: Mesh) -> None:
    async with Client(fleet.router.address) as client:
        job = await client.submit_generation("hello", request_id="lib-1", max_tokens=3)
        assert job.request_id == "lib-1"
        news = [message async for message in client.watch_generation("lib-1")]
        assert news[-1].generation.result.text
        answer = await client.submit_generations([job_request("hello", request_id=f"lib-{n}") for n in range(2, 5)])
        assert (answer.accepted, answer.refused) == (3, 0)
        with pytest.raises(AlreadyExists) as caught:
            await client.submit_generation("other", request_id="lib-1")
        assert caught.value.resource == ("generation", "lib-1")
        with pytest.raises(WrongState):
            await client.requeue_generation("lib-1")

    def sync() -> None:
        with SyncClient(fleet.router.address) as client:
            assert client.get_generation("lib-1").result.text
            assert client.submit_generation("hello", request_id="lib-1", max_tokens=3).request_id == "lib-1"
            assert [message.attempt for message in client.watch_generation("lib-1")][-1] == 1
            answer = client.submit_generations(job_request("hello", request_id=f"lib-{n}") for n in range(2, 6))
            assert (answer.accepted, answer.existing) == (1, 3)
            client.delete_generation("lib-1")
            assert "lib-1" not in {job.request_id for job in client.generations()}

    await asyncio.to_thread(sync)


async def test_a_line_of_a_batch_file_is_a_request() -> None:
    request = read_line(entry("a", model="m", temperature=0, stop=["x"], max_completion_tokens=9), prefix="p/").request
    assert (request.request_id, request.model, request.sampling.max_tokens) == ("p/a", "m", 9)
    assert request.sampling.temperature == 0
    assert request.sampling.HasField("temperature")
    assert [(message.role, message.content) for message in request.messages] == [("user", "Name three rivers.")]
    parts = [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]
    assert read_line(entry("a", messages=parts)).request.messages[0].content == "one two"


@pytest.mark.parametrize(
    "wrong",
    [
        "[]",
        "{}",
        json.dumps({"custom_id": "a", "body": {"messages": "hello"}}),
        json.dumps({"custom_id": "a", "method": "GET", "body": {}}),
        json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {}}),
        entry("a", stream=True),
        entry("a", n=2),
        entry("a", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        entry("a", max_tokens=-1),
    ],
)
async def test_what_is_no_such_line_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest):
        read_line(wrong)


async def test_a_job_that_did_not_succeed_is_a_line_with_its_error() -> None:
    job = generations_pb2.Generation(request_id="p/a", state=generations_pb2.GENERATION_STATE_DEAD)
    job.error.reason, job.error.message = "ENGINE_FAILED", "it broke"
    assert line_of(job, "p/") == {
        "id": "p/a",
        "custom_id": "a",
        "response": None,
        "error": {"code": "engine_failed", "message": "it broke"},
    }
    cut = generations_pb2.Generation(request_id="b", state=generations_pb2.GENERATION_STATE_SUCCEEDED)
    cut.result.finished.reason = generation_pb2.FINISH_REASON_LENGTH
    assert line_of(cut)["response"]["body"]["choices"][0]["finish_reason"] == "length"
