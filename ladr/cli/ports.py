"""Ports of this machine: which are free, and where a server on one is reached."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack


def reachable(host: str) -> str:
    """The host by which a server that listens on `host` is reached from this machine."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}.get(host, host)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now.

    Raises: OSError: not an address of this machine, or a port that is not for us; its `strerror` is fit for people.
    """
    try:
        _listener(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


class FreePorts(ExitStack):
    """Takes free ports, no two alike; they are given back when it is left, and are then for servers to take."""

    def take(self, host: str) -> int:
        """A free port on that host. Raises: OSError: as `is_free`."""
        return int(self.enter_context(_listener(host, 0)).getsockname()[1])


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens as a server's would: where an old connection lingers, but not beside another server."""
    bare = host.strip("[]")
    made = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((bare, port))
        made.listen()
    except BaseException:
        made.close()
        raise
    return made
