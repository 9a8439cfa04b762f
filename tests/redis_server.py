"""A real redis-server on a free port, with a password, in a directory of its own, that tests can stop, freeze and restart."""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.ports import free_port

_START_S = 10.0


class RedisServer:
    """One redis-server; the port and the password stay the same over restarts. With `appendonly` so does what it holds."""

    def __init__(self, directory: Path, *, appendonly: bool = False, config: str = "") -> None:
        self._directory = directory
        self._config = config
        self._appendonly = appendonly
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_urlsafe(16)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers. Raises: RuntimeError: it does not."""
        config = self._directory / "redis.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\ndir {self._directory}\n"
            f"logfile {self._directory}/redis.log\nsave ''\n"
            f"appendonly {'yes' if self._appendonly else 'no'}\nappendfsync always\n{self._config}"
        )
        self._process = subprocess.Popen(["redis-server", str(config)], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"redis-server did not start: {(self._directory / 'redis.log').read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it as its service manager would, and wait for that."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, frozen or not, and wait for that."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and answers nothing."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A blocking client, for a test to look and to meddle."""
        with redis.Redis.from_url(self.url, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            yield client

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    def _end(self, number: int) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait(_START_S)
            self._process = None

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
