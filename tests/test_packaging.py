"""The wheel that users install: the client and nothing of the servers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from tests.processes import ROOT


def test_the_wheel_holds_the_client_alone_and_asks_for_no_server_library(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 300_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith("METADATA"))).decode())
    assert {name.split("/")[0] for name in names} == {"ladr", f"ladr-{metadata['Version']}.dist-info"}
    assert {"ladr/py.typed", "ladr/v1/router_pb2.py", "ladr/v1/router_pb2_grpc.pyi"} <= set(names)
    always = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [
        line for line in always if line.split(">")[0] in {"torch", "redis", "xllamacpp", "transformers", "uvloop"}
    ]
