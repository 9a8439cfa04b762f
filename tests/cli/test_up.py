"""`ladr up` with real processes and the simulated engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import ladr
from tests.ports import free_port

BIN = Path(sys.executable).parent
LADR = [sys.executable, "-m", "ladr"]
ROOT = Path(__file__).parents[2]
START_S = 60


def environment(**extra: str) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("LADR_", "OTEL_"))}
    own["PATH"] = f"{BIN}:{own['PATH']}"
    for section in ("ROUTER", "METRICS", "WORKER"):
        own[f"LADR_{section}__PORT"] = own[f"LADR_{section}__HTTP_PORT"] = "0"
        own[f"LADR_{section}__DRAIN_GRACE"] = "20s"
    own |= {
        "LADR_WORKER__ENGINE": "simulated",
        "LADR_WORKER__MODELS": "sim",
        "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "5",
    }
    return own | extra


class Up:
    """A running `ladr up -o json`, its events and the processes that it started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.services: dict[str, dict[str, str]] = {}
        self.pids: set[int] = set()

    @property
    def router(self) -> str:
        return self.services["router"]["address"]

    async def until(self, match: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout
        async with asyncio.timeout(START_S):
            while line := await self.process.stdout.readline():
                self.events.append(json.loads(line))
                self.pids |= children_of(self.process.pid)
                if match(self.events[-1]):
                    return self.events[-1]
        raise AssertionError(f"it ended before that: {self.events}")

    async def ready(self) -> None:
        self.services = (await self.until(lambda event: event["event"] == "ready"))["services"]
        await self.until(lambda event: event["event"] == "running")

    def pid_of(self, name: str) -> int:
        """The process that listens on that service's port."""
        for pid in children_of(self.process.pid):
            if f"LADR_WORKER__ID={name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        raise AssertionError(f"{name} does not run")

    async def ended(self, within_s: float = 30) -> int:
        """Its exit code; nothing of it may be left."""
        async with asyncio.timeout(within_s):
            code = await self.process.wait()
        assert await gone(self.pids)
        return code


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def children_of(pid: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


async def gone(pids: set[int], within_s: float = 0.0) -> bool:
    """Whether none of them runs, or will after a while."""
    until = time.monotonic() + within_s
    while left := {pid for pid in pids if runs(pid)}:
        if time.monotonic() > until:
            print("left behind:", left)
            return False
        await asyncio.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def up(tmp_path: Path, *args: str, **environ: str) -> AsyncIterator[Up]:
    process = await asyncio.create_subprocess_exec(
        *LADR, "up", "-o", "json", "--log-dir", str(tmp_path / "logs"), *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(**environ), cwd=ROOT,
    )  # fmt: skip
    running = Up(process)
    try:
        yield running
    finally:
        running.pids |= children_of(process.pid)
        if process.returncode is None:
            process.kill()
            await process.communicate()
        for pid in filter(runs, running.pids):
            os.kill(pid, signal.SIGKILL)


async def run(*argv: str, **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(**environ), cwd=ROOT
    )
    async with asyncio.timeout(START_S):
        out, err = await process.communicate()
    return int(process.returncode or 0), out.decode(), err.decode()


async def test_it_answers_a_question_names_the_worker_and_ends_with_once(tmp_path: Path) -> None:
    code, out, err = await run(*LADR, "up", "--ask", "Name three rivers.", "--once", TMPDIR=str(tmp_path))
    assert code == 0, err
    assert "try:" not in out
    assert names_in(tmp_path) == []  # its logs too are gone
    assert "› Name three rivers." in out
    assert re.search(r"^worker-[12] \(sim\): 5 tokens", out, re.MULTILINE)
    assert "worker-1: ready" in err


async def test_the_grpcurl_line_works_as_it_is_pasted(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *LADR, "up", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment(), cwd=ROOT
    )
    assert process.stdout
    try:
        async with asyncio.timeout(START_S):
            while not (line := (await process.stdout.readline()).decode().strip()).startswith("grpcurl"):
                pass
        code, out, err = await run("bash", "-c", line)
        assert (code, err) == (0, "")
        assert '"finished"' in out
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_commands_see_the_mesh(tmp_path: Path) -> None:
    config = tmp_path / "mesh.yaml"
    config.write_text("up: {fleet: [{id: big, slots: 2}, {id: small, slots: 7, models: other}]}\n")
    async with up(tmp_path, "--config", str(config)) as mesh:
        await mesh.ready()
        here = {"LADR_ADDRESS": mesh.router}
        code, out, _ = await run(*LADR, "workers", "-o", "json", **here)
        rows = {info["report"]["worker_id"]: info for info in json.loads(out)["workers"]}
        assert (code, rows["big"]["report"]["slots"], rows["small"]["report"]["slots"]) == (0, 2, 7)
        assert rows["small"]["report"]["models"][0]["name"] == "other"

        code, out, _ = await run(*LADR, "generate", "hi", "--model", "other", "-o", "json", **here)
        events = [json.loads(line) for line in out.splitlines()]
        assert events[0]["started"]["worker_id"] == "small"
        assert events[-1]["finished"]["usage"]["completion_tokens"] == "5"
        code, _, err = await run(*LADR, "generate", "hi", "--model", "nosuch", **here)
        assert (code, err.count("\n")) == (1, 1)
        code, _, err = await run(*LADR, "generate", "hi", "--temperature", "9", **here)
        assert (code, err.count("\n")) == (2, 1)

        code, out, _ = await run(*LADR, "drain", "small", **here)
        assert (code, out) == (0, "small is draining; 0 requests still to finish\n")
        code, out, _ = await run(*LADR, "workers", **here)
        assert "small\tdraining\tother" in out
        code, _, err = await run(*LADR, "chat", "hi", "--model", "other", "--timeout", "1", **here)
        assert (code, err.count("\n")) == (1, 1)
        code, out, _ = await run(*LADR, "drain", "small", "--undo", **here)
        assert (code, out) == (0, "small is back in service\n")
        code, _, err = await run(*LADR, "drain", "nobody", **here)
        assert (code, err.count("\n")) == (1, 1)
        mesh.process.terminate()
        assert await mesh.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_everything_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    async with up(tmp_path) as mesh:
        await mesh.ready()
        assert len(mesh.pids) == 4
        mesh.process.send_signal(number)
        await mesh.until(lambda event: event.get("text") == "stopping (Ctrl-C again stops at once)")
        assert await mesh.ended() == 0
        assert (tmp_path / "logs" / "router.log").exists()


async def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    async with up(tmp_path, LADR_WORKER__SIMULATED__LOAD="60s") as mesh:
        await mesh.until(lambda event: event.get("state", "").startswith("loading"))
        mesh.process.send_signal(signal.SIGINT)
        assert await mesh.ended() == 0


async def test_an_open_answer_is_finished_after_ctrl_c_and_cut_by_a_second(tmp_path: Path) -> None:
    slow = {"LADR_WORKER__SIMULATED__STEP": "100ms", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "15"}
    async with up(tmp_path, **slow) as mesh, _answering(mesh) as answer:
        mesh.process.send_signal(signal.SIGINT)
        assert (await answer).usage.completion_tokens == 15
        assert await mesh.ended() == 0
    slow["LADR_WORKER__SIMULATED__ANSWER_TOKENS"] = "400"
    async with up(tmp_path, **slow) as mesh, _answering(mesh) as answer:
        mesh.process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.5)
        assert not answer.done()
        mesh.process.send_signal(signal.SIGINT)
        await mesh.ended(within_s=5)
        with pytest.raises(ladr.LadrError):
            await answer


@asynccontextmanager
async def _answering(mesh: Up) -> AsyncIterator[asyncio.Task[ladr.Answer]]:
    await mesh.ready()
    async with ladr.Client(mesh.router) as client:
        stream = client.generate("hi", max_tokens=400)
        assert await anext(stream)
        task = asyncio.create_task(stream.answer())
        yield task
        task.cancel()
        await asyncio.wait([task])


async def test_a_process_that_does_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    grace = {f"LADR_{section}__DRAIN_GRACE": "200ms" for section in ("ROUTER", "METRICS", "WORKER")}
    async with up(tmp_path, **grace) as mesh:
        await mesh.ready()
        os.kill(mesh.pid_of("worker-2"), signal.SIGSTOP)
        mesh.process.terminate()
        assert await mesh.ended(within_s=15) == 0


async def test_a_killed_supervisor_takes_its_children_along(tmp_path: Path) -> None:
    async with up(tmp_path) as mesh:
        await mesh.ready()
        mesh.process.kill()
        await mesh.process.wait()
        assert await gone(mesh.pids, within_s=10)


async def test_accepted_jobs_outlive_a_mesh_that_is_killed(tmp_path: Path) -> None:
    port = free_port()
    here = {"LADR_ROUTER__PORT": str(port), "XDG_STATE_HOME": str(tmp_path / "state")}
    names = [f"job-{n}" for n in range(50)]
    async with up(tmp_path, "--workers", "1", **here, LADR_WORKER__SIMULATED__STEP="100ms") as mesh:
        await mesh.ready()
        async with ladr.Client(mesh.router) as client:
            answer = await client.submit_generations(ladr.job_request("hello", request_id=name) for name in names)
            assert answer.accepted == 50
        os.kill(mesh.process.pid, signal.SIGKILL)
        await mesh.process.wait()
        assert await gone(mesh.pids, 10)
    assert (tmp_path / "state" / "ladr" / str(port) / "jobs.db").stat().st_mode & 0o777 == 0o600
    async with up(tmp_path, "--workers", "1", **here) as mesh:
        await mesh.ready()
        async with ladr.Client(mesh.router) as client, asyncio.timeout(60):
            for name in names:
                *_, last = [news async for news in client.watch_generation(name)]
                assert last.generation.result.finished.usage.completion_tokens == 5


async def test_a_supervisor_that_is_killed_while_it_starts_takes_its_children_along(tmp_path: Path) -> None:
    for wait_s in (0.0, 0.1, 0.3):
        async with up(tmp_path) as mesh:
            async with asyncio.timeout(START_S):
                while len(mesh.pids) < 4:
                    mesh.pids |= children_of(mesh.process.pid)
                    await asyncio.sleep(0)
            await asyncio.sleep(wait_s)
            mesh.process.kill()
            await mesh.process.wait()
            assert await gone(mesh.pids, within_s=10)


async def test_a_crashed_worker_is_started_again(tmp_path: Path) -> None:
    async with up(tmp_path) as mesh:
        await mesh.ready()
        os.kill(mesh.pid_of("worker-1"), signal.SIGKILL)
        note = await mesh.until(lambda event: event["event"] == "note")
        assert note["text"].startswith("worker-1 was ended by SIGKILL; starting it again in 0.2 s")
        async with ladr.Client(mesh.router) as client, asyncio.timeout(START_S):
            incarnations = set()
            while not incarnations:
                known = await client.list_workers()
                incarnations = {w.report.incarnation for w in known if w.eligible and w.report.worker_id == "worker-1"}
                await asyncio.sleep(0.05)
        mesh.process.terminate()
        assert await mesh.ended() == 0


async def test_a_port_in_use_is_one_line_and_nothing_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = await run(*LADR, "up", "--router-port", str(port))
    assert (code, out) == (2, "")
    assert err == f"ladr: port {port} is in use: set router.port or stop what uses it\n"


async def test_a_second_mesh_on_the_same_ports_is_told_who_has_them(tmp_path: Path) -> None:
    async with up(tmp_path) as mesh:
        await mesh.ready()
        port = mesh.services["metrics"]["address"].rpartition(":")[2]
        code, _, err = await run(*LADR, "up", "--metrics-port", port)
        assert code == 2
        assert err == (
            f"ladr: port {port} is in use (a LADR MetricsBus answers there): set metrics.port or stop what uses it\n"
        )


async def test_the_logs_of_a_mesh_that_failed_are_kept(tmp_path: Path) -> None:
    missing = {"LADR_WORKER__ENGINE": "llamacpp", "LADR_WORKER__MODELS": "chat=not-there.gguf"}
    code, _, err = await run(*LADR, "up", TMPDIR=str(tmp_path), **missing)
    (logs,) = names_in(tmp_path)
    assert (code, err.splitlines()[-1]) == (2, f"logs: {tmp_path / logs}")
    assert "worker-1.log" in names_in(tmp_path / logs)


async def test_a_child_that_cannot_start_stops_everything_with_its_own_line(tmp_path: Path) -> None:
    missing = {"LADR_WORKER__ENGINE": "llamacpp", "LADR_WORKER__MODELS": "chat=not-there.gguf"}
    async with up(tmp_path, **missing) as mesh:
        out, err = await mesh.process.communicate()
        assert mesh.process.returncode == 2
        assert err.decode().count("\n") == 1
        assert err.decode().startswith("ladr: worker: model chat cannot be loaded")
        assert b'"event": "ready"' not in out
        assert b'"note"' not in out, out


async def test_a_child_that_crashes_before_it_is_ready_ends_with_the_tail_of_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(ROOT / "services", broken / "services")
    (broken / "services" / "metrics" / "__main__.py").write_text("raise RuntimeError('no such luck')\n")
    async with up(tmp_path, PYTHONPATH=str(broken)) as mesh:
        _, err = await mesh.process.communicate()
        assert mesh.process.returncode == 1
        assert "RuntimeError: no such luck" in err.decode()
        assert "metrics ended with exit code 1 3 times before it was ready" in err.decode()


async def test_workers_come_and_go_with_the_load_and_no_request_is_lost(tmp_path: Path) -> None:
    scale = {
        "LADR_ROUTER__SCALE__WAITING": "300ms",
        "LADR_ROUTER__SCALE__COOLDOWN": "1s",
        "LADR_ROUTER__SCALE__DOWN_AFTER": "2s",
        "LADR_WORKER__SLOTS": "2",
        "LADR_WORKER__SIMULATED__STEP": "40ms",
        "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "25",
    }
    async with up(tmp_path, "--min-workers", "1", "--max-workers", "3", **scale) as mesh:
        await mesh.ready()
        async with ladr.Client(mesh.router) as client:
            assert len(await client.list_workers()) == 1
            asking: list[asyncio.Task[ladr.Answer]] = []
            most = 1
            while len(asking) < 60 or not all(task.done() for task in asking):
                if len(asking) < 60:
                    asking.append(asyncio.create_task(client.complete(f"p{len(asking)}")))
                most = max(most, len([info for info in await client.list_workers() if info.eligible]))
                await asyncio.sleep(0.1)
            answers = await asyncio.gather(*asking)
            assert most > 1
            assert len({answer.worker_id for answer in answers}) > 1
            async with asyncio.timeout(30):
                while len([info for info in await client.list_workers() if info.eligible]) >= most:  # noqa: ASYNC110  # other processes
                    await asyncio.sleep(0.1)
        mesh.process.terminate()  # also while one that joined is still there
        assert await mesh.ended() == 0


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--min-workers", "2"], "--max-workers"),
        (["--min-workers", "3", "--max-workers", "2"], "less than"),
        (["--workers", "2", "--max-workers", "3"], "--workers"),
    ],
)
async def test_bounds_that_do_not_go_together_are_one_line(flags: list[str], what: str) -> None:
    code, _, err = await run(*LADR, "up", *flags)
    assert (code, err.count("\n")) == (2, 1)
    assert what in err
