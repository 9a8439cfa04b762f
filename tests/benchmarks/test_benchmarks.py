"""The benchmarks still run, and their reports have what docs/benchmarks.md tells of. Their figures are not judged here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks import envoy
from benchmarks.__main__ import NAMES
from benchmarks.convergence import Slowdown, mean_took_s, switches
from benchmarks.report import Report, Spread, Table, percentile
from tests.processes import ROOT


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(value: Any) -> list[float]:
    """Every number in a report's rows."""
    if isinstance(value, dict | list):
        return [n for inner in (value.values() if isinstance(value, dict) else value) for n in numbers(inner)]
    return [value] if isinstance(value, int | float) else []


@pytest.fixture(scope="module")
def quick_runs() -> Iterator[dict[str, Future[str]]]:
    """All of them, two at a time: most of what they take is waiting."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(bench, name, "--quick", "-o", "json") for name in NAMES}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_gives_figures(name: str, quick_runs: dict[str, Future[str]]) -> None:
    found = json.loads(quick_runs[name].result())
    assert found["machine"]["cores"] >= 1
    assert found["machine"].keys() == {"cores", "cpu", "python", "grpcio", "load"}
    report = found["benchmarks"][name]
    assert report["tables"]
    for table in report["tables"]:
        assert table["rows"]
        assert all(math.isfinite(n) for n in numbers(table["rows"])), table
    if name in ("routing_mesh", "router_overhead"):
        assert (envoy.MISSING in report["notes"]) == (envoy.binary() is None)
    if name == "survival":
        for row in report["tables"][0]["rows"]:
            assert row["identical"] == row["streams"] > 0
    if name == "transformers_batching":
        fp32 = report["tables"][0]["rows"]
        assert [row["same answers"].split(",")[0] for row in fp32] == ["ours 8/8", "ours 16/16"]
    if name == "speculative":
        assert [row["same answers"] for row in report["tables"][0]["rows"]] == ["4/4"]


def test_every_benchmark_says_what_it_measures_and_the_documentation_tells_of_each() -> None:
    documentation = (ROOT / "docs" / "benchmarks.md").read_text()
    listed = bench("--list").splitlines()
    for name in NAMES:
        assert f"make bench ARGS={name}" in documentation
        assert listed[listed.index(name) + 1].strip()


def test_a_wrong_name_is_refused_with_those_that_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(name in done.stderr for name in NAMES)


def test_a_table_gives_the_same_figures_to_people_and_to_programs() -> None:
    table = Table("Speed", ("kind", "rate [1/s]"))
    table.add("fast", Spread.of([3.0, 1.0, 2.0]))
    table.add("slow", 1234.5)
    assert (
        str(Report([table], ["Noted."]))
        == "Speed\n  kind  rate [1/s]\n  fast     2 (1–3)\n  slow       1,234\n\nNoted."
    )
    rows = [
        {"kind": "fast", "rate [1/s]": {"median": 2.0, "least": 1.0, "greatest": 3.0}},
        {"kind": "slow", "rate [1/s]": 1234.5},
    ]
    assert Report([table]).plain() == {"tables": [{"title": "Speed", "rows": rows}], "notes": []}


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(101)]
    assert [percentile(values[::-1], share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 100.0]


def test_a_weight_has_converged_when_it_stays_near_its_final_value() -> None:
    falls = Slowdown(at_s=10.0, weights=[(8 + 0.2 * n, 0.25 if n < 13 else 0.1) for n in range(45)])
    assert (falls.before, falls.final) == (0.25, 0.1)
    assert falls.took_s == pytest.approx(0.6)
    assert mean_took_s([falls, falls]) == pytest.approx(0.6)
    back = Slowdown(at_s=10.0, weights=[(at_s, 0.25 if 12.3 < at_s < 12.5 else w) for at_s, w in falls.weights])
    assert back.took_s == pytest.approx(2.6)


def test_smoothing_keeps_the_best_worker_where_latencies_jitter() -> None:
    assert switches((100.0, 200.0), theta=0.0, seed=0, reports=100) > switches((100.0, 200.0), 0.7, 0, 100) == 0
    assert switches((100.0, 1_000.0), theta=0.0, seed=0, reports=100) == 0
