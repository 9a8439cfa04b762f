"""Parts of the command that need no process."""

from __future__ import annotations

import re
import socket
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ladr import config
from ladr.cli.backoff import Backoff
from ladr.cli.fleet import fleet_table
from ladr.cli.misuse import Misuse
from ladr.cli.output import escape
from ladr.cli.plan import plan
from ladr.config import ConfigError, WorkerSettings
from ladr.config_engines import INSTALL
from ladr.v1.fleet_pb2 import MODEL_STATE_READY, WORKER_STATE_READY, ModelStatus, WorkerReport
from ladr.v1.router_pb2 import WorkerInfo
from services.worker import engines


def free() -> dict[str, str]:
    return {f"LADR_{s}__{p}": "0" for s in ("ROUTER", "METRICS", "WORKER") for p in ("PORT", "HTTP_PORT")}


def ten_free_ports() -> int:
    """The first of ten ports in a row that are free."""
    for first in range(20_000, 30_000, 10):
        try:
            for port in range(first, first + 10):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no ten free ports")


def test_restarts_wait_longer_each_time_until_a_long_life() -> None:
    backoff = Backoff()
    assert [backoff.after(1) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert [backoff.after(30), backoff.after(1)] == [0.2, 0.4]


@given(st.text())
def test_escaped_text_cannot_move_a_terminal(text: str) -> None:
    safe = escape(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in safe)
    safe.encode()


@pytest.mark.parametrize("text", ["plain", "é ü ß", "日本語", "👩‍👩‍👧", "नमस्ते", "a\u00a0b"])
def test_text_of_any_script_is_left_alone(text: str) -> None:
    assert escape(text) == text


def test_workers_get_the_next_ports_and_names() -> None:
    first = ten_free_ports()
    environ = free() | {"LADR_WORKER__PORT": str(first), "LADR_WORKER__HTTP_PORT": str(first + 5)}
    _, router, *workers = plan(config.load(environ=environ), 3)
    assert [worker.name for worker in workers] == ["worker-1", "worker-2", "worker-3"]
    assert [worker.address for worker in workers] == [f"127.0.0.1:{first + n}" for n in range(3)]
    assert [worker.http_address for worker in workers] == [f"127.0.0.1:{first + 5 + n}" for n in range(3)]
    assert workers[2].environ["LADR_WORKER__PORT"] == str(first + 2)
    assert router.environ["LADR_ROUTER__BUS"] == workers[0].environ["LADR_WORKER__BUS"]


def test_port_0_gives_every_process_ports_of_its_own() -> None:
    children = plan(config.load(environ=free()), 20)
    ports = [port for child in children for _, port in child.ports]
    assert len(set(ports)) == len(ports) == 44
    assert 0 not in ports


def test_a_fleet_entry_becomes_the_environment_of_its_worker(tmp_path: Path) -> None:
    file = tmp_path / "ladr.yaml"
    file.write_text("up: {fleet: [{id: big, slots: 2, simulated: {step: 50ms}}, {models: [{name: x}]}]}\n")
    _, _, big, other = plan(config.load(file, free()))
    assert big.name == big.environ["LADR_WORKER__ID"] == "big"
    for child, position in ((big, 0), (other, 1)):
        made = config.load(file, free() | child.environ).worker
        wanted = config.load(file, free()).fleet_member(position)
        assert made.model_copy(update={"id": "", "port": 0, "http_port": 0, "bus": ()}) == wanted.model_copy(
            update={"id": "", "port": 0, "http_port": 0, "bus": ()}
        )
    with pytest.raises(Misuse, match=r"--workers does not go with up\.fleet"):
        plan(config.load(file, free()), 3)


def test_a_port_that_is_given_twice_names_both(tmp_path: Path) -> None:
    port = ten_free_ports()
    environ = free() | {"LADR_ROUTER__PORT": str(port), "LADR_WORKER__HTTP_PORT": str(port)}
    with pytest.raises(Misuse, match=f"port {port} is given to router and to worker-1"):
        plan(config.load(environ=environ))


@pytest.mark.parametrize("port", ["0", "5"])
def test_an_address_of_another_machine_is_misuse(port: str) -> None:
    elsewhere = {"LADR_WORKER__HOST": "203.0.113.1", "LADR_WORKER__PORT": port, "LADR_WORKER__HTTP_PORT": port}
    with pytest.raises(Misuse, match=r"203\.0\.113\.1.* cannot be listened on"):
        plan(config.load(environ=free() | elsewhere), 1)


def _busy_worker(name: str, reason: str = "") -> WorkerInfo:
    model = ModelStatus(name="smollm2-135m", state=MODEL_STATE_READY)
    report = WorkerReport(worker_id=name, state=WORKER_STATE_READY, engine="llamacpp", slots=4, models=[model])
    info = WorkerInfo(report=report, eligible=not reason, ineligible_reason=reason)
    info.route.latency.FromMilliseconds(12_345)
    info.route.time_per_output_token.FromMilliseconds(123)
    info.age.FromMilliseconds(123_400)
    return info


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_names_and_states_of_workers_are_readable_at_any_width(width: int) -> None:
    console = Console(width=width)
    found = [_busy_worker("worker-1"), _busy_worker("worker-2", "unreachable")]
    with console.capture() as shown:
        console.print(fleet_table(found, None, width))
    lines = [line.rstrip() for line in shown.get().splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in shown.get()
    assert [line.split()[:2] for line in lines[-2:]] == [["worker-1", "ready"], ["worker-2", "unreachable"]]
    assert ("smollm2-135m" in shown.get()) == (width >= 100)
    assert ("llamacpp" in shown.get()) == (width >= 200)


def test_what_a_terminal_has_no_room_for_is_broken_and_not_cut() -> None:
    name = "a-worker-with-a-long-name-on-a-narrow-terminal"
    console = Console(width=30)
    with console.capture() as shown:
        console.print(fleet_table([_busy_worker(name)], None, 30))
    assert "".join(line.split(" ")[0] for line in shown.get().splitlines()[2:]) == name


def test_the_advice_for_each_engine_works_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(INSTALL) == set(WorkerSettings.model_fields["engine"].annotation.__args__)  # type: ignore[union-attr]
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for advice in INSTALL.values():
        target = re.fullmatch(r"make (\S+)", advice)
        assert (
            re.search(rf"^{target[1]}:", makefile, re.M) if target else advice.startswith(".venv/bin/pip install vllm")
        )
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.delitem(sys.modules, "services.worker.engines.llamacpp", raising=False)
    with pytest.raises(ConfigError, match=r"llamacpp needs xllamacpp, .*; in a checkout run: make setup$"):
        engines.create(WorkerSettings())
