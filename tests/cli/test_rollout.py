"""`ladr distill publish` and its kin against a real mesh and a distiller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ladr import Client
from tests.cli.test_commands import Terminal
from tests.cli.test_distill import run
from tests.distiller.rollout.meshes import JOB, STUDENT, Fleet, fleet, publisher
from tests.load import Load

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUICK = ("--worker", "fresh", "--stage-time", "200ms", "--stage-requests", "5", "--latency-ratio", "20")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[Fleet]:
    async with fleet("good", "fresh") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(mesh: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with publisher(tmp_path_factory.mktemp("distiller"), mesh.router.address) as (_, client):
        yield client


async def test_a_student_is_published_and_watched_to_the_end(mesh: Fleet, there: Client) -> None:
    async with Load(mesh.channel, 60, model="chat"):
        code, out, err = await run(
            there, "publish", JOB, "--name", "chat", "--stages", "0.2,1", "--stage-timeout", "1m", "--watch", *QUICK
        )
    assert code == 0, err
    lines = [line.split("  ") for line in out.splitlines()]
    assert [(line[0], line[1]) for line in lines][-1] == ("succeeded", "100 %")
    assert [line[1] for line in lines if line[0] == "running"] == ["0 %", "20 %", "20 %", "100 %"]
    assert lines[-1][4].startswith("stage 2 of 2 (100 %) is passed with ") and "the last one" in lines[-1][4]
    await mesh.set_split({})
    code, out, err = await run(there, "rollouts")
    assert code == 0
    header, row = (line.split("\t") for line in out.splitlines())
    assert header[1:6] == ["NAME", "MODEL", "STATE", "STAGE", "SHARE"]
    assert row[1:6] == ["chat", STUDENT, "succeeded", "2/2", "100 %"]
    code, out, err = await run(there, "rollout", row[0], "-o", "json")
    found = json.loads(out)
    assert (found["request"]["stage_timeout"], found["request"]["stages"]) == ("60s", [0.2, 1.0])


async def test_a_student_is_taken_back(mesh: Fleet, there: Client) -> None:
    code, out, err = await run(there, "publish", JOB, "--name", "chat", "--model", "back", *QUICK)
    assert code == 0, err
    rollout = out.strip()
    terminal = Terminal("distill", "rollout", rollout, "--watch", "--distiller", there.address, COLUMNS="120")
    await terminal.until("student 0 ok, 0 failed")
    terminal.type("\x03")
    await terminal.until("the roll-out goes on")
    assert await terminal.ended() == 1
    code, out, err = await run(there, "rollback", rollout)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split("\t")[3] == "cancelled"
    code, out, err = await run(there, "rollout", rollout, "--watch")
    assert code == 1
    assert out.startswith("cancelled  0 %")
    code, out, err = await run(there, "rollout", rollout)
    assert "reason: it was cancelled" in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("publish", JOB), 2, "Missing option '--name'"),
        (("publish", JOB, "--name", "chat", "--stages", "a"), 2, "give shares with commas between"),
        (("publish", JOB, "--name", "chat", "--stages", "1,0.5"), 2, "each greater than the one before"),
        (("publish", "gone", "--name", "chat"), 1, "there is no such job"),
        (("rollout", "gone"), 1, "there is no such roll-out"),
    ],
)
async def test_misuse_is_one_line(there: Client, arguments: tuple[str, ...], code: int, says: str) -> None:
    status, _, err = await run(there, *arguments)
    assert status == code
    assert says in err
    assert len(err.splitlines()) == 1
