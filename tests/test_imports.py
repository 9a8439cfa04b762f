"""What a process loads: the router and the bus run without torch, the client without any server library."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("services.router.__main__", ["torch", "transformers", "xllamacpp", "redis"]),
        ("services.metrics.__main__", ["torch", "transformers", "xllamacpp"]),
        ("services.worker.__main__", ["torch", "transformers", "xllamacpp"]),
        ("services.distiller.__main__", ["torch", "transformers", "xllamacpp", "matplotlib"]),
        (
            "ladr",
            ["services", "torch", "redis", "click", "rich", "structlog", "opentelemetry.sdk", "prometheus_client"],
        ),
        ("ladr.cli", ["services", "torch", "redis", "structlog", "prometheus_client", "hdrh", "matplotlib"]),
    ],
)
def test_a_module_loads_only_what_it_needs(module: str, absent: list[str]) -> None:
    code = f"import {module}, sys; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
