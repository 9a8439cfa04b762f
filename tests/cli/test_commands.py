"""Commands against a played router: what they print, how they fail, what reaches a terminal."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladr import errors
from ladr.v1 import fleet_pb2

LADR = [sys.executable, "-m", "ladr"]


async def run(*args: str, stdin: str = "", cwd: Path | None = None, **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *LADR,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
        cwd=cwd,
    )
    out, err = await process.communicate(stdin.encode())
    return int(process.returncode or 0), out.decode(), err.decode()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args: str, **environ: str) -> None:
        self.shown = ""
        self._seen = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._fd, other = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *LADR, *args],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "xterm", **environ},
        )
        os.close(other)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    async def until(self, text: str) -> None:
        """Wait for `text`, after what was waited for before."""
        async with asyncio.timeout(20):
            while (at := self.shown.find(text, self._seen)) < 0:
                assert await self._more(), f"it ended before {text!r}: {self.shown!r}"
        self._seen = at + len(text)

    async def ended(self) -> int:
        async with asyncio.timeout(20):
            while await self._more():
                pass
            return await asyncio.to_thread(self._process.wait)

    async def _more(self) -> bool:
        chunk = await self._chunks.get()
        self.shown += self._decoder.decode(chunk)
        return bool(chunk)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._fd, 65536)
        except OSError:  # the other end is closed
            chunk = b""
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self._chunks.put_nowait(chunk)


async def test_generate_prints_the_answer_and_nothing_else_into_a_pipe(router: Any) -> None:
    assert await run("generate", "x", LADR_ADDRESS=router.address) == (0, "Seine, Rhine.\n", "")
    assert router.requests[0].prompt == "x"


async def test_generate_takes_all_its_options_and_reads_stdin(router: Any) -> None:
    code, _, _ = await run(
        "generate", "-", "--address", router.address, "--raw", "--max-tokens", "3", "--temperature", "0", "--top-p", "0.5",
        "--top-k", "2", "--stop", "a", "--stop", "b", "--seed", "1", "--logprobs", "2", "--priority", "batch",
        "--session-id", "s", "--model", "m", "-o", "json", stdin="from a pipe",
    )  # fmt: skip
    (request,) = router.requests
    assert code == 0
    assert (request.prompt, request.raw, request.model, request.priority) == ("from a pipe", True, "m", 3)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (3, 0, 0.5, 2)
    assert (list(sampling.stop), sampling.seed, sampling.logprobs) == (["a", "b"], 1, 2)


async def test_generate_as_json_is_a_line_an_event_or_one_object(router: Any) -> None:
    _, out, _ = await run("generate", "x", "-o", "json", LADR_ADDRESS=router.address)
    events = [json.loads(line) for line in out.splitlines()]
    assert [next(iter(event)) for event in events] == ["started", "delta", "delta", "finished"]
    assert events[1]["delta"]["offset"] == "0"
    _, out, _ = await run("generate", "x", "-o", "json", "--no-stream", LADR_ADDRESS=router.address)
    answer = json.loads(out)
    assert (answer["text"], answer["reason"], answer["worker_id"]) == ("Seine, Rhine.", "stop", "w1")


async def test_logprobs_are_in_the_json_whole_or_in_pieces(router: Any) -> None:
    for message in router.script[1:3]:
        message.delta.logprobs.add(token="x", logprob=-0.5).top.add(token="y")
    asked = ("generate", "x", "--logprobs", "1", "-o", "json", "--address", router.address)
    _, pieces, _ = await run(*asked)
    _, whole, _ = await run(*asked, "--no-stream")
    streamed = [json.loads(line).get("delta", {}).get("logprobs", []) for line in pieces.splitlines()]
    assert json.loads(whole)["logprobs"] == [each for delta in streamed for each in delta]
    assert [(each["token"], each["logprob"]) for each in json.loads(whole)["logprobs"]] == [("x", -0.5)] * 2


@pytest.mark.parametrize("command", ["generate", "chat"])
async def test_an_error_after_a_part_of_the_answer_is_on_a_line_of_its_own(router: Any, command: str) -> None:
    router.script, router.error = router.script[:2], errors.WorkerLost("lost")
    assert await run(command, "x", LADR_ADDRESS=router.address) == (1, "Seine, \n", "ladr: lost\n")
    router.script = []
    assert await run(command, "x", LADR_ADDRESS=router.address) == (1, "", "ladr: lost\n")


async def test_a_failure_is_one_line_that_says_what_to_do(router: Any, dead_address: str) -> None:
    code, out, err = await run("generate", "x", "--address", dead_address)
    assert (code, out) == (1, "")
    assert (
        err
        == f"ladr: no answer from {dead_address} (Connection refused); check the address, and that the server runs there\n"
    )
    router.error = errors.InvalidRequest("sampling.top_k: at most 1000", field="sampling.top_k")
    assert await run("drain", "--address", router.address, "w") == (
        0,
        "w is draining; 0 requests still to finish\n",
        "",
    )
    code, _, err = await run("generate", "x", "--address", router.address)
    assert (code, err) == (2, "ladr: sampling.top_k: at most 1000\n")
    router.error = errors.NoWorker("no worker\x1b[2Jhere\nnow")
    code, _, err = await run("generate", "x", "--address", router.address)
    assert (code, err) == (1, "ladr: no worker\\x1b[2Jhere now\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nosuch"], "ladr: No such command 'nosuch' (see python -m ladr --help)\n"),
        (["generate"], "ladr: Missing argument 'PROMPT' (see python -m ladr generate --help)\n"),
        (
            ["generate", ""],
            "ladr: the prompt is empty; give one, or - and text on stdin (see python -m ladr generate --help)\n",
        ),
        (["router", "--port", "x"], "ladr: --port: router.port: Input should be a valid integer"),
        (["worker", "--simulated-step", "x"], "ladr: --simulated-step: worker.simulated.step: give a duration"),
        (["up", "--worker-slots", "0"], "ladr: --worker-slots: worker.slots: Input should be greater than 0\n"),
        (["worker", "--engine", "gpu"], "ladr: Invalid value for '--engine'"),
        (["chat", ""], "ladr: the prompt is empty; give one, or leave it out to talk"),
        (["generate", "x", "--logprobs", "2"], "ladr: --logprobs needs -o json"),
        (["up", "--engine", "foo"], "ladr: Invalid value for '--engine': 'foo' is not one of 'llamacpp'"),
        (["worker", "--models", "[{"], "ladr: --models: it begins as JSON does, and is none: "),
        (["up", "--worker-models", "[{"], "ladr: --worker-models: it begins as JSON does, and is none: "),
        (["chat", "--address", "http://h:1"], "ladr: Invalid value for '--address': give HOST:PORT, without http:// ("),
        (["workers", "--address", "localhost"], "ladr: Invalid value for '--address': give HOST:PORT ("),
        (["router", "-c", "/nosuch.yaml"], "ladr: /nosuch.yaml: no such file; give --config a file, or leave it out\n"),
    ],
)
async def test_misuse_is_one_line_and_exit_code_2(args: list[str], message: str) -> None:
    code, out, err = await run(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


async def test_a_service_command_becomes_the_service_with_its_flags_as_settings(tmp_path: Path) -> None:
    (tmp_path / "services" / "router").mkdir(parents=True)
    for name in ("__init__.py", "router/__init__.py"):
        (tmp_path / "services" / name).touch()
    (tmp_path / "services" / "router" / "__main__.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('LADR_')}]))\n"
    )
    (tmp_path / "my.yaml").write_text("router: {port: 5}\n")
    code, out, err = await run(
        *("router", "-c", str(tmp_path / "my.yaml"), "--tick", "100ms", "--telemetry-log-level", "debug"),
        PYTHONPATH=str(tmp_path),
    )
    assert (code, err) == (0, "")
    argv, environ = json.loads(out)
    assert argv == ["--config", str(tmp_path / "my.yaml")]
    assert environ == {"LADR_ROUTER__TICK": "100ms", "LADR_TELEMETRY__LOG_LEVEL": "debug"}


async def test_where_only_the_client_is_installed_a_service_command_says_so(tmp_path: Path) -> None:
    code, _, err = await run("router", PYTHONPATH=str(_without_services(tmp_path)), cwd=tmp_path)
    assert code == 2
    assert err.startswith("ladr: the services are not installed here")


async def test_where_only_the_client_is_installed_the_doctor_finds_nothing_wrong(tmp_path: Path) -> None:
    code, out, _ = await run("doctor", "-o", "json", PYTHONPATH=str(_without_services(tmp_path)), cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert (code, list(checks)) == (0, ["settings", "python", "services"])
    assert checks["services"]["message"].startswith("only the client is installed here")


def _without_services(root: Path) -> Path:
    """A directory that hides the services: it has somebody else's package of that name."""
    (root / "services").mkdir()
    (root / "services" / "__init__.py").touch()
    return root


async def test_workers_are_a_table_lines_or_json(router: Any) -> None:
    worker = router.workers[0]
    worker.report.models.add(name="m\x1b[2J", state=fleet_pb2.MODEL_STATE_READY)
    worker.report.state, worker.eligible, worker.ineligible_reason = fleet_pb2.WORKER_STATE_READY, False, "silent"
    worker.route.weight = 0.25
    worker.route.latency.FromMilliseconds(12)
    code, out, _ = await run("workers", LADR_ADDRESS=router.address)
    header, first, *_ = [line.split("\t") for line in out.splitlines()]
    assert (code, header[:3]) == (0, ["WORKER", "STATE", "MODELS"])
    assert first[:3] == ["w0", "silent", "m\\x1b[2J"]
    told = dict(zip(header, first, strict=True))
    assert (told["LATENCY ms"], told["SHARE OF ALL %"], told["AGE s"]) == ("12.0", "25.0", "-")
    worker.age.FromMilliseconds(61_200)
    _, out, _ = await run("workers", LADR_ADDRESS=router.address)
    assert out.splitlines()[1].endswith("\t61.2")
    _, out, _ = await run("workers", "-o", "json", LADR_ADDRESS=router.address)
    assert [info["report"]["worker_id"] for info in json.loads(out)["workers"]] == ["w0", "w1", "w2"]
    terminal = Terminal("workers", LADR_ADDRESS=router.address, COLUMNS="200")
    assert await terminal.ended() == 0
    assert "\x1b[2J" not in terminal.shown
    assert "m\\x1b[2J" in terminal.shown


async def test_of_one_model_workers_show_their_share_of_its_requests(router: Any) -> None:
    router.workers[0].route.weight = 0.25
    router.shares = {"w0": 0.75}
    _, out, _ = await run("workers", "--model", "m", LADR_ADDRESS=router.address)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[rows[0].index("SHARE OF MODEL %")] for row in rows[1:]] == ["75.0", "0.0", "0.0"]


async def test_a_worker_that_is_not_there_is_named(router: Any) -> None:
    router.unknown = "nobody"
    code, _, err = await run("drain", "nobody", LADR_ADDRESS=router.address)
    assert (code, err) == (1, "ladr: no worker 'nobody'; `ladr workers` names them\n")


async def test_what_a_model_says_cannot_move_a_terminal(router: Any, say: Any) -> None:
    router.script = [say.started(), say.delta("a\tb\n\x1b]0;x\x07\u009b2J\u202eé😀", 0), say.finished(1)]
    terminal = Terminal("generate", "x", LADR_ADDRESS=router.address)
    assert await terminal.ended() == 0
    assert "a\tb\r\n\\x1b]0;x\\x07\\x9b2J\\u202eé😀" in terminal.shown
    code, out, _ = await run("generate", "x", LADR_ADDRESS=router.address)
    assert (code, out) == (0, "a\tb\n\x1b]0;x\x07\u009b2J\u202eé😀\n")


async def test_a_talk_remembers_stops_at_ctrl_c_and_ends_at_ctrl_d(router: Any) -> None:
    talk = Terminal("chat", "--system", "Be brief.", LADR_ADDRESS=router.address)
    await talk.until("›")
    talk.type("rivers?\n")
    await talk.until("w1 (m): 3 tokens")
    await talk.until("›")
    router.hang, router.script = True, router.script[:2]
    talk.type("more?\n")
    await router.until("open", 1)
    await talk.until("more?\r\nSeine, ")
    talk.type("\x03")
    await talk.until("(stopped)")
    await router.until("cancelled", 1)
    await talk.until("›")
    talk.type("\x04")
    assert await talk.ended() == 0
    assert [(m.role, m.content) for m in router.requests[1].messages] == [
        ("system", "Be brief."),
        ("user", "rivers?"),
        ("assistant", "Seine, Rhine."),
        ("user", "more?"),
    ]


async def test_a_talk_from_a_pipe_takes_each_line_as_a_turn(router: Any) -> None:
    code, out, err = await run("chat", stdin="one\n\ntwo\n", LADR_ADDRESS=router.address)
    assert (code, out, err) == (0, "Seine, Rhine.\nSeine, Rhine.\n", "")
    assert [len(request.messages) for request in router.requests] == [1, 3]


async def test_ctrl_c_during_one_answer_cancels_it(router: Any) -> None:
    router.hang = True
    process = await asyncio.create_subprocess_exec(
        *LADR,
        "chat",
        "x",
        "--address",
        router.address,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    await router.until("open", 1)
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err.strip()) == (1, b"ladr: interrupted")
    await router.until("cancelled", 1)


async def test_watching_workers_gives_a_document_a_second(router: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        *LADR, "workers", "--watch", "-o", "json", "--address", router.address, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    for _ in range(2):
        assert len(json.loads(await process.stdout.readline())["workers"]) == 3
    process.kill()
    await process.communicate()


async def test_ctrl_c_ends_watching_quietly(router: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        *LADR, "workers", "--watch", "--address", router.address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    terminal = Terminal("workers", "--watch", LADR_ADDRESS=router.address)
    await terminal.until("w2")
    terminal.type("\x03")
    assert await terminal.ended() == 0
    assert "interrupted" not in terminal.shown


async def test_a_reader_that_goes_away_is_no_failure_to_speak_of(router: Any) -> None:
    process = await asyncio.create_subprocess_shell(
        f"{' '.join(LADR)} workers --watch --address {router.address} | head -n 1", stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    _, err = await process.communicate()
    assert err == b""


async def test_config_shows_what_is_in_effect_and_masks_secrets(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        "metrics: {redis_url: redis://:hunter1@host:6379/0}\n"
        "worker: {openai: {api_key: hunter2}}\n"
        "up: {fleet: [{openai: {api_key: hunter3}, slots: 2}]}\n"
    )
    code, out, _ = await run("config", "show", "-c", str(file), "-o", "json", LADR_ROUTER__TICK="0.25s")
    shown = json.loads(out)
    assert (code, shown["router"]["tick"], shown["up"]["fleet"][0]["slots"]) == (0, "250ms", 2)
    _, text, _ = await run("config", "show", "-c", str(file))
    assert "hunter" not in out + text
    assert "api_key: '**********'" in text
    assert "redis_url: redis://:***@host:6379/0" in text


async def test_config_check_says_ok_or_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("router:\n  port: 1\n")
    assert await run("config", "check", "-c", str(file)) == (0, f"ok: {file}\n", "")
    file.write_text("router:\n  prot: 1\n")
    message = f"ladr: {file}:2: unknown key 'router.prot'; did you mean 'port'?\n"
    assert await run("config", "check", "-c", str(file)) == (2, "", message)


async def test_doctor_has_a_line_for_each_thing_and_fails_if_one_does(tmp_path: Path, router: Any) -> None:
    port = router.address.rpartition(":")[2]
    own = {"LADR_ROUTER__PORT": port, "LADR_WORKER__MODELS": "chat=missing.gguf"}
    code, out, _ = await run("doctor", **own)
    assert code == 1
    assert "fail  model chat: models/missing.gguf is not there; put it there" in out
    assert f"router.port: {port} is in use" in out
    assert "redis: not used" in out
    code, out, _ = await run("doctor", "-o", "json", LADR_WORKER__ENGINE="simulated")
    checks = {check["name"]: check["level"] for check in json.loads(out)["checks"]}
    assert (checks["settings"], checks["python"], checks["gpu"]) == ("ok", "ok", "ok")
    nobody = {"LADR_METRICS__BACKEND": "redis", "LADR_METRICS__REDIS_URL": "redis://:hunter2@127.0.0.1:1/0"}
    code, out, _ = await run("doctor", **nobody)
    assert code == 1
    assert "fail  redis: no answer (ConnectionError); start it, or set metrics.redis_url" in out
    code, out, _ = await run("doctor", LADR_ROUTER__PROT="1")
    assert code == 1
    assert out.startswith("fail  settings: LADR_ROUTER__PROT: unknown key")


async def test_the_version_is_said() -> None:
    code, out, _ = await run("--version")
    assert code == 0
    assert out.startswith("ladr 0.")
