"""Several router processes on one port: the kernel spreads connections over them, and each hears the whole fleet by itself.

A client with one connection has one process; who wants more of them opens more connections. One /metrics page tells of all, by
the label `process`; a process that ended leaves no series.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import urllib.request
from collections.abc import Iterable, Sequence

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ladr.cli.keeper import ChildFailed, Keeper
from ladr.cli.plan import Child
from ladr.cli.ports import FreePorts, reachable
from ladr.cli.supervisor import Supervisor
from ladr.config import RouterSettings, env_name
from services.common.server import CannotStart
from services.common.telemetry import serve_metrics
from services.router.tuning.tuning import state_path

log = structlog.get_logger()

_SCRAPE_S = 2.0
_POLL_S = 0.05


async def run(settings: RouterSettings) -> None:
    """Run `settings.processes` of them until a signal comes; a crashed one starts again.

    Raises: CannotStart: a port is in use, or a process cannot start.
    """
    with _reserved(settings.host, settings.port) as kept:
        port = kept.getsockname()[1]
        children = _plan(settings, port)
        registry = CollectorRegistry()
        registry.register(_Pages([child.http_address for child in children]))
        try:
            http, http_port = serve_metrics(settings.host, settings.http_port, registry)
        except OSError:
            raise CannotStart(f"HTTP port {settings.http_port} is in use or not ours; set another http_port") from None
        argv = [sys.executable, *sys.orig_argv[1:]]
        keepers = [Keeper(child, argv, None, lambda text: log.warning("process", about=text)) for child in children]

        async def work() -> int:
            for keeper in keepers:
                while await asyncio.to_thread(_page, keeper.child.http_address) is None:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(_POLL_S)
                keeper.was_ready = True
            log.info("serving", port=port, http_port=http_port, processes=len(keepers))
            await asyncio.Event().wait()
            return 0

        try:
            await Supervisor(keepers).run(work, lambda: log.info("stopping"))
        except ChildFailed as failed:
            raise CannotStart(f"{failed}; its own lines are above") from None
        finally:
            await asyncio.to_thread(http.shutdown)
            http.server_close()


def _plan(settings: RouterSettings, port: int) -> list[Child]:
    """The processes, each with a page of its own on loopback."""
    children = []
    learnt = state_path(settings.tuner, settings.policy)
    with FreePorts() as free:
        for number in range(settings.processes):
            http_port = free.take("127.0.0.1")
            children.append(
                Child(
                    name=f"router-{number}",
                    service="router",
                    address=f"{reachable(settings.host)}:{port}",
                    http_address=f"127.0.0.1:{http_port}",
                    host=settings.host,
                    ports=(),
                    grace_s=settings.drain_grace.total_seconds(),
                    environ={
                        env_name("router", "processes"): "1",
                        env_name("router", "share_port"): "true",
                        env_name("router", "port"): str(port),
                        env_name("router", "http_port"): str(http_port),
                        env_name("router", "http_host"): "127.0.0.1",
                        env_name("router", "tuner", "state"): str(learnt.with_stem(f"{learnt.stem}-{number}")),
                    },
                )
            )
    return children


def _reserved(host: str, port: int) -> socket.socket:
    """The port, bound so that the processes can listen on it and nobody else does. Raises: CannotStart: it is in use."""
    bare = host.strip("[]")
    made = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET)
    try:
        made.bind((bare, port))  # without sharing: finds out whether it is free
        port = made.getsockname()[1]
        made.close()
        made = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((bare, port))
    except OSError:
        made.close()
        raise CannotStart(f"port {port} on {host} is in use or not ours; set another port") from None
    return made


class _Pages(Collector):
    """The processes' pages as one, made anew at each scrape."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, address in enumerate(self._addresses):
            for family in text_string_to_metric_families(_page(address) or ""):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {**sample.labels, "process": str(number)}, sample.value)
        yield from families.values()


def _page(address: str) -> str | None:
    """A process's /metrics; None: it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_SCRAPE_S) as page:  # our own child
            return str(page.read().decode())
    except (OSError, ValueError):
        return None
