"""What the other tests know of ports."""

from __future__ import annotations

import socket

from tests.ports import free_port, listening


def test_a_port_that_this_process_listens_on_is_seen() -> None:
    before = listening()
    with socket.create_server(("127.0.0.1", free_port())):
        assert len(listening() - before) == 1
    assert listening() == before
