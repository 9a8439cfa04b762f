"""`ladr bench` as a command: against a played router, over a real mesh, and asked for what cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ladr.bench.trace import read_trace
from ladr.cli.bench import bench
from ladr.cli.bench_options import POLICIES, Asked, refuse
from ladr.config import RouterSettings
from tests.processes import ROOT

KEYS = {
    "scenario", "policy", "offered_qps", "achieved_qps", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "e2e_p50_s",
    "e2e_p99_s", "goodput", "errors", "errors_by_reason", "lost_tokens", "repeated_tokens", "resumed", "lateness_p99_s",
    "sustained_qps", "router_rss_start_bytes", "router_rss_peak_bytes", "rounds", "notes",
}  # fmt: skip
QUICK = ("-d", "0.4s", "--rate", "50/s", "--warmup", "0.1s")


async def run(
    *args: str, launch: Sequence[str] = ("-m", "ladr"), cwd: Path | None = None, **environ: str
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *launch, "bench", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
        cwd=cwd,
    )
    out, err = await process.communicate()
    return int(process.returncode or 0), out.decode(), err.decode()


async def results(*args: str, **environ: str) -> list[dict[str, Any]]:
    code, out, err = await run(*args, "-o", "json", **environ)
    assert (code, err) == (0, "")
    document: Mapping[str, Any] = json.loads(out)
    assert document.keys() == {"machine", "scale", "results", "files"}
    assert document["machine"]["cores"] >= 1
    return list(document["results"])


async def test_a_running_router_is_measured_and_the_figures_are_json(router: Any) -> None:
    (found,) = await results("--address", router.address, *QUICK, "--rounds", "2", "--arrivals", "constant")
    assert found.keys() >= KEYS
    assert (found["scenario"], found["arrivals"], found["requests"]) == (router.address, "constant", 30)
    assert (found["answered"], found["errors"], found["goodput"], found["lost_tokens"]) == (30, 0, 1.0, 0)
    assert 0 < found["ttft_p50_s"] <= found["ttft_p99_s"] <= found["e2e_p99_s"] < 2
    assert [each["requests"] for each in found["rounds"]] == [15, 15]
    assert (found["router_rss_peak_bytes"], found["sustained_qps"]) == (None, None)


async def test_into_a_pipe_goes_a_line_of_facts_and_a_row_a_result(router: Any) -> None:
    router.script = router.script[:2]
    code, out, err = await run("--address", router.address, *QUICK, "--arrivals", "constant")
    facts, header, row, note, *rest = out.splitlines()
    told = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (code, err, rest) == (0, "", [])
    assert facts.startswith("cores: ")
    assert facts.endswith("scale: 1.0")
    assert (told["SCENARIO"], told["ERRORS"], told["GOODPUT %"]) == (router.address, "15", "0.00")
    assert note == f"{router.address}, the router: failed: 15 BROKEN_STREAM"


async def test_a_trace_is_replayed_with_its_models_sessions_and_priorities(router: Any, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"at_s": 0.1, "prompt_tokens": 30, "answer_tokens": 9, "model": "big", "priority": "batch"}\n'
        '{"at_s": 0, "prompt_tokens": 20, "answer_tokens": 5, "session_id": "s"}\n'
    )
    (found,) = await results("--trace", str(trace), "--model", "small", LADR_ADDRESS=router.address)
    assert (found["arrivals"], found["requests"]) == ("trace", 2)
    said = [(len(r.prompt), r.sampling.max_tokens, r.model, r.session_id, r.priority) for r in router.requests]
    assert said == [(80, 5, "small", "s", 0), (120, 9, "big", "", 3)]


async def test_the_highest_rate_that_keeps_the_slo_is_found(router: Any) -> None:
    (found,) = await results("--address", router.address, *QUICK, "--find-rate")
    assert found["sustained_qps"] == pytest.approx(50 * (1 - 1 / 2**6))
    router.script = router.script[:1]
    (found,) = await results("--address", router.address, *QUICK, "--find-rate")
    assert (found["sustained_qps"], found["notes"][-1]) == (0, "no rate that was tried keeps the SLO")


async def test_a_report_is_a_picture_and_a_page_that_needs_nothing_beside_it(router: Any, tmp_path: Path) -> None:
    router.shares = {"w1": 0.5, "w2": 0.5}
    code, out, _ = await run("--address", router.address, *QUICK, "--report", str(tmp_path / "there"))
    page, picture = tmp_path / "there" / "bench.html", tmp_path / "there" / "bench.png"
    assert code == 0
    assert out.splitlines()[-2:] == [f"wrote {picture}", f"wrote {page}"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = page.read_text()
    assert "data:image/png;base64," in html
    assert "http://" not in html
    assert router.address in html
    code, out, _ = await run("--address", router.address, *QUICK, "--report", str(tmp_path / "one.png"))
    assert (code, out.splitlines()[-1]) == (0, f"wrote {tmp_path / 'one.png'}")


async def test_policies_are_compared_over_meshes_of_their_own_under_the_same_arrivals() -> None:
    args = (
        "--scenario",
        "mixed",
        "--scale",
        "0.05",
        "-d",
        "2s",
        "--rate",
        "20",
        "--answer-tokens",
        "8",
        "--prompt-tokens",
        "20",
    )
    found = await results(*args, "--policy", "round-robin", "--policy", "least-request")
    assert [(each["scenario"], each["policy"]) for each in found] == [
        ("mixed", "round-robin"),
        ("mixed", "least-request"),
    ]
    assert found[0]["requests"] == found[1]["requests"] > 10
    for each in found:
        assert (each["errors"], each["lost_tokens"], each["repeated_tokens"]) == (0, 0, 0)
        assert each["answered"] == each["requests"]
        assert each["tpot_p50_s"] > 0.005  # a step of the fast ones takes 8 ms
        assert 10 << 20 < each["router_rss_start_bytes"] <= each["router_rss_peak_bytes"]


async def test_at_ctrl_c_the_mesh_is_gone_and_nothing_is_left(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ladr", "bench", "--scenario", "chat", "--scale", "0.05"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    while len(mesh := children(process.pid)) < 8:
        assert process.returncode is None
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (1, b"", b"ladr: interrupted\n")
    assert not [pid for pid in mesh if alive(pid)]
    assert left_in(tmp_path) == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def left_in(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--scenario", "none"],
            "Invalid value for '--scenario': 'none' is not one of 'chat', 'long-context', 'pulse'",
        ),
        (["--scenario", "chat", "--policy", "luck"], "Invalid value for '--policy': 'luck' is not one of"),
        (
            ["--scenario", "chat", "--address", "h:1"],
            "--scenario starts a mesh of its own, --address names a running one",
        ),
        (["--address", "h"], "Invalid value for '--address' / '--target': give HOST:PORT"),
        (["--policy", "round-robin"], "--policy needs --scenario"),
        (["--scenario", "chat", "--model", "m"], "--model needs --address"),
        (["--load", "0.5"], "--load needs --scenario"),
        (["--find-rate"], "--find-rate needs --rate"),
        (["--scenario", "chat", "--rate", "5", "--load", "0.5"], "--rate and --load both say how much"),
        (["--scenario", "chat", "--find-rate", "--load", "0.5"], "--find-rate looks for the load itself"),
        (["--rate", "0"], "Invalid value for '-R' / '--rate': 0: give more than 0"),
        (["--rate", "nan"], "Invalid value for '-R' / '--rate': nan: give more than 0"),
        (["--rate", "x"], "Invalid value for '-R' / '--rate': 'x': give requests a second, such as 50 or 50/s"),
        (["--duration", "soon"], "Invalid value for '-d' / '--duration' / '--max-seconds': 'soon': give a duration"),
        (["--duration", "1s", "--warmup", "1s"], "--warmup is as long as the run"),
        (["--arrivals", "constant", "--pulse", "5"], "--pulse does not go with --arrivals constant"),
        (["--pulse-over", "1s"], "--pulse-over needs --arrivals pulse; these are poisson"),
        (["--trace", "t.jsonl", "--rate", "5"], "--trace says itself when requests come"),
        (["--trace", "/nosuch.jsonl"], "/nosuch.jsonl: No such file or directory"),
        (["--report", "x.pdf"], "--report x.pdf: give a directory, FILE.html or FILE.png"),
        (["--scenario", "chat", "--scale", "0"], "Invalid value for '--scale'"),
    ],
)
async def test_misuse_is_one_line_and_exit_code_2(args: list[str], message: str) -> None:
    code, out, err = await run(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ladr: {message}")


async def test_a_router_that_is_not_there_is_named_with_exit_code_1(dead_address: str) -> None:
    code, out, err = await run("--address", dead_address)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"ladr: no answer from {dead_address}")


@pytest.mark.parametrize(
    ("missing", "args"), [("hdrh", []), ("matplotlib", ["--report", "x"])], ids=["hdrhistogram", "matplotlib"]
)
async def test_a_package_that_is_not_installed_is_named_with_what_to_do(missing: str, args: list[str]) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; from ladr.cli import main; main()"
    code, out, err = await run(*args, launch=("-c", hidden))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ladr: ladr bench needs the package ")
    assert "pip install 'ladr[bench]'" in err


async def test_where_only_the_client_is_installed_a_running_router_can_be_measured(router: Any, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, _, err = await run("--scenario", "chat", cwd=tmp_path, PYTHONPATH=path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("ladr: the services are not installed here")
    code, _, err = await run("--address", router.address, *QUICK, cwd=tmp_path, PYTHONPATH=path)
    assert (code, err) == (0, "")


def test_every_example_of_the_documentation_is_accepted(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "bench.md").read_text()
    examples = re.findall(r"^ladr bench (.*?)(?:  +#.*)?$", page, re.M)
    assert len(examples) >= 5
    for example in examples:
        asked = bench.make_context("bench", shlex.split(example)).params
        scenarios, address = asked.pop("scenarios"), asked.pop("address")
        del asked["config_file"], asked["output"]
        refuse(Asked(**asked), scenarios, address)
    (trace,) = re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)
    file = tmp_path / "t.jsonl"
    file.write_text(trace)
    assert len(read_trace(file)) == 2


def test_the_policies_are_those_that_the_router_knows() -> None:
    assert RouterSettings().policy in POLICIES
    for policy in POLICIES:
        assert RouterSettings(policy=policy).policy == policy  # type: ignore[arg-type]
