"""The worker's rates, and a start that fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from services.worker.stats import Stats
from tests.processes import ROOT


def test_tokens_per_second_are_those_of_the_last_second() -> None:
    stats = Stats()
    stats.generated(50, 10.0)
    assert stats.tokens_per_second(10.1) == 50
    assert stats.tokens_per_second(11.2) == 0
    for step in range(30):
        stats.generated(1, 20 + step / 10)
    assert abs(stats.tokens_per_second(22.95) - 10) <= 1


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = {**os.environ, "LADR_WORKER__ENGINE": "simulated", "LADR_WORKER__PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-m", "services.worker"], env=environment, cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"worker: port {port} on 127.0.0.1 is in use or not ours; set another port"
    ]
