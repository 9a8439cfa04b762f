"""Ports of this machine: one that nobody listens on, and those that this process does."""

from __future__ import annotations

import socket
from pathlib import Path


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def listening() -> set[str]:
    """The TCP addresses, as /proc writes them, on which this process listens."""
    own = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
