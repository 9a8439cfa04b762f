"""The report as clients get it, from a real distiller whose trainer is played."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from ladr.errors import InvalidRequest
from ladr.sync_client import SyncClient
from services.distiller.place import Place
from tests.distiller.distillers import distiller, ended, spec
from tests.processes import ROOT

PAGE = "<h1>a report</h1>"


async def run(address: str, *arguments: str) -> tuple[int | None, str, str]:
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ladr", "distill", "report", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "LADR_DISTILLER_ADDRESS": address},
    )
    out, err = await made.communicate()
    return made.returncode, out.decode(), err.decode()


async def test_the_page_comes_when_it_is_asked_for_and_is_written_to_a_file(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (app, client):
        job = await client.create_distill_job(spec(steps=1))
        await ended(client, job.id)
        assert (await client.get_distill_report(job.id)).html == ""
        report = await client.get_distill_report(job.id, html=True)
        assert (report.html, json.loads(report.json)["steps"]) == (PAGE, 1)

        def ask() -> str:
            with SyncClient(client.address) as twin:
                return twin.get_distill_report(job.id, html=True).html

        assert await asyncio.to_thread(ask) == PAGE
        file = tmp_path / "r.html"
        code, out, err = await run(client.address, job.id, "--html", str(file))
        assert (code, err) == (0, f"the page is in {file}\n")
        assert "kl\t0.5" in out
        assert file.read_text() == PAGE
        assert await run(client.address, job.id, "--html", "-") == (0, PAGE, "")
        code, out, err = await run(client.address, job.id, "--html", str(tmp_path / "nowhere" / "r.html"))
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert f"there is no directory {tmp_path / 'nowhere'}: make it first" in err

        page = Place(app.dispatcher.place(job.id).root).report / "report.html"
        page.write_bytes(b"x" * ((4 << 20) + 1))
        assert (await client.get_distill_report(job.id, html=True)).html == ""
        code, _, err = await run(client.address, job.id, "--html", str(file))
        assert (code, err) == (1, "ladr: the report of this job has no page\n")


async def test_a_judges_model_that_is_not_there_is_refused_before_the_job_begins(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        with pytest.raises(InvalidRequest) as refused:
            await client.create_distill_job({**spec(), "evaluation": {"judge_model": "nothing"}})
        assert refused.value.field == "spec.evaluation.judge_model"
        assert (await client.create_distill_job({**spec(), "evaluation": {"judge_model": "teacher"}})).id
