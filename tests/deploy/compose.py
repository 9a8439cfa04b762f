"""compose.yaml as data, and its services as processes of this machine: same commands, same environment, free loopback ports."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ladr.config import Server, Settings
from tests.processes import ROOT

FILE = ROOT / "compose.yaml"
REDIS_PORT = 6379
HEALTHY_S = 60.0
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::([?-])([^}]*))?\})")


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml by name, anchors and merges resolved."""
    read: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
    return read


def interpolated(value: Any, environ: Mapping[str, str]) -> Any:
    """A value with `$$`, `${NAME}`, `${NAME:-default}` and `${NAME:?message}` replaced, as Compose does it."""
    if isinstance(value, Mapping):
        return {key: interpolated(inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner, environ) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        dollar, name, kind, rest = match.groups()
        if dollar:
            return "$"
        if found := environ.get(name):
            return found
        if kind == "?":
            raise KeyError(f"{name}: {rest}")
        return rest or ""

    return _VARIABLE.sub(replace, value)


def required_variables() -> set[str]:
    """Names that Compose refuses to start without."""
    return {match[2] for match in _VARIABLE.finditer(FILE.read_text()) if match[3] == "?"}


def section(service: Mapping[str, Any]) -> str:
    """The part of the settings that a service of ours reads ("router"); empty for somebody else's image."""
    command = service.get("command", [])
    return command[-1].removeprefix("services.") if command[:2] == ["python", "-m"] else ""


def defaults(name: str) -> Server:
    """The settings of a section where nothing is set."""
    found: Server = getattr(Settings(), name)
    return found


class Local:
    """One service of compose.yaml as a process. `ports` maps each service's name to the port that takes its place here."""

    def __init__(self, name: str, ports: Mapping[str, int], environ: Mapping[str, str], directory: Path) -> None:
        service = interpolated(services()[name], environ)
        self.name = name
        self._section = section(service)
        self._ports = ports
        self._log = directory / f"{name}.log"
        self._directory = directory
        self._command = service["command"]
        self._check = service["healthcheck"]["test"]
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            **{key: self._here(str(value)) for key, value in service["environment"].items()},
            **self._places(),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = list(self._command)
        if command[0] == "sh":
            here = f"--bind 127.0.0.1 --port {self._ports[self.name]}"
            command[-1] = command[-1].replace("redis-server -", f"redis-server - {here}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, cwd=self._directory, stdout=log, stderr=subprocess.STDOUT
            )

    async def healthy(self) -> None:
        """Wait until its own healthcheck exits 0. Raises: AssertionError: it ended, or is not healthy within a minute."""
        assert self._process
        deadline_s = asyncio.get_running_loop().time() + HEALTHY_S
        while await self._checked() != 0:
            late = asyncio.get_running_loop().time() > deadline_s
            assert self._process.poll() is None, f"{self.name} ended"
            assert not late, f"{self.name} is not healthy"
            await asyncio.sleep(0.05)

    async def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        assert self._process
        self._process.terminate()
        return await asyncio.to_thread(self._process.wait, 30)

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[self.name]}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def _checked(self) -> int:
        kind, *command = self._check
        if kind == "CMD-SHELL":
            command = ["sh", "-c", command[0].replace("redis-cli", f"redis-cli -p {self._ports[self.name]}")]
        else:
            usual = f"127.0.0.1:{defaults(self._section).port}"
            assert usual in command, f"{self.name}: the healthcheck asks another port than the service listens on"
            command[command.index(usual)] = self.address
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, cwd=self._directory, stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    def _here(self, value: str) -> str:
        """A value with every service's host name and usual port replaced by what is here."""
        for name, port in self._ports.items():
            own = section(services()[name])
            usual = defaults(own).port if own else REDIS_PORT
            value = re.sub(rf"(?<![\w-]){re.escape(name)}:{usual}\b", f"127.0.0.1:{port}", value)
        return value

    def _places(self) -> dict[str, str]:
        if not self._section:
            return {}
        prefix = f"LADR_{self._section.upper()}__"
        places = {"HOST": "127.0.0.1", "PORT": str(self._ports[self.name]), "HTTP_PORT": "0"}
        if self._section == "worker":
            places["ADVERTISE"] = "127.0.0.1"
        return {prefix + key: value for key, value in places.items()}
