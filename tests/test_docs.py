"""What README and docs show is run, against a mesh of simulated workers and a distiller whose trainers are played."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from ladr import config
from tests.distiller.distillers import distiller
from tests.load import channel_to, eligible
from tests.processes import ROOT, Mesh, mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    jobs = {
        "LADR_ROUTER__JOBS__STORE": "sqlite",
        "LADR_ROUTER__JOBS__PATH": str(tmp_path_factory.mktemp("jobs") / "jobs.db"),
    }
    async with mesh(2, router=jobs) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1", "worker-2")
        yield m


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, code) of every fenced block of a language; "" is one without."""
    return [
        (page.name, textwrap.dedent(code))
        for page in DOCS
        for code in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
    ]


async def run(*command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def distilling(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with distiller(tmp_path_factory.mktemp("distiller")) as (_, client):
        yield client.address


async def test_every_python_example_runs(fleet: Mesh, distilling: str) -> None:
    examples = blocks("python")
    assert len(examples) >= 2
    for page, code in examples:
        if "asyncio.run" not in code:
            body = textwrap.indent(code, "    ")
            code = f"import asyncio\nfrom ladr import Client\nasync def main():\n{body}\nasyncio.run(main())"
        code = code.replace("127.0.0.1:50051", fleet.router.address).replace("127.0.0.1:50053", distilling)
        status, output = await run(sys.executable, "-W", "error", "-c", code)
        assert status == 0, f"{page}: {output}"


async def test_every_grpcurl_line_works_as_pasted(fleet: Mesh) -> None:
    lines = [
        (page, line)
        for page, block in blocks("")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("grpcurl")
    ]
    assert len(lines) >= 6
    for page, line in lines:
        line = line.replace("127.0.0.1:50051", fleet.router.address)
        status, output = await run(str(Path(sys.executable).parent / "grpcurl"), *shlex.split(line)[1:])
        assert status == 0, f"{page}: {line}\n{output}"


async def test_every_settings_example_is_accepted(tmp_path: Path) -> None:
    examples = blocks("yaml")
    assert examples
    for _, text in examples:
        file = tmp_path / "ladr.yaml"
        file.write_text(text)
        settings = config.load(file, environ={})
        for position in range(len(yaml.safe_load(text).get("up", {}).get("fleet", []))):
            settings.fleet_member(position)


async def test_every_link_between_pages_leads_somewhere() -> None:
    for page in DOCS:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


async def test_every_make_target_and_command_that_is_named_exists() -> None:
    text = "\n".join(page.read_text() for page in [*DOCS, ROOT / "CONTRIBUTING.md"])
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([\w-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for command in set(re.findall(r"^ladr (\w+)", text, re.M)):
        status, output = await run(sys.executable, "-m", "ladr", command, "--help")
        assert status == 0, output
