"""The result of a benchmark as JSON, and the same figures as columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ladr.bench.generator import TOO_MANY_OPEN
from ladr.bench.measure import Measurement
from ladr.bench.run import Tally

_LATE_S = 0.02  # the generator's own lateness, p99, from which on it is said,
_LATE_SHARE = 0.1  # if it is also more than so much of the median TTFT

# Columns that a narrow terminal loses, the first first.
LEAST = (
    "RESUMED",
    "LATE\np99 ms",
    "ROUTER\nMiB",
    "ms/TOKEN\np50",
    "TTFT ms\np90",
    "E2E ms\np50",
    "REPEATED",
    "LOST",
    "E2E ms\np99",
)


def result(tally: Tally) -> dict[str, Any]:
    """All figures of one (scenario, policy): times in seconds, None where nothing was measured."""
    total, load = tally.measurement, tally.load
    begun, peak = tally.memory or (None, None)
    return {
        "scenario": load.scenario,
        "policy": tally.policy,
        "arrivals": "trace" if load.trace else load.shape.kind,
        "rate_qps": None if load.trace or load.search else load.rate_per_s,
        "duration_s": load.end_s,
        "warmup_s": load.warmup_s,
        "seed": load.seed,
        **_figures(total),
        "slo_ttft_s": load.slo.ttft_s,
        "slo_e2e_s": load.slo.e2e_s,
        "sustained_qps": tally.sustained_per_s,
        "router_rss_start_bytes": begun,
        "router_rss_peak_bytes": peak,
        "rounds": [_figures(turn.measurement) | {"sustained_qps": turn.sustained_per_s} for turn in tally.turns],
        "notes": notes(tally),
    }


def notes(tally: Tally) -> list[str]:
    """What a reader of the figures must know."""
    total = tally.measurement
    found = []
    if total.errors:
        found.append("failed: " + ", ".join(f"{count} {reason}" for reason, count in total.errors.most_common()))
    if total.lost or total.repeated:
        found.append(f"{total.lost} tokens were lost, {total.repeated} came twice")
    if refused := total.errors[TOO_MANY_OPEN]:
        found.append(f"{refused} requests were not sent: {tally.load.max_open} were open (--max-open)")
    late_s = total.late.percentile(99) or 0.0
    if late_s > max(_LATE_S, _LATE_SHARE * (total.ttft.percentile(50) or 0.0)):
        found.append(
            f"the generator was late itself, by {late_s * 1e3:.0f} ms at p99; latencies have that in them: "
            "give it more processor time, or lower --scale or the rate"
        )
    if tally.sustained_per_s == 0:
        found.append("no rate that was tried keeps the SLO")
    return [*found, *(crash for turn in tally.turns for crash in turn.crashes)]


def columns(results: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Header → cells, one for each result; a column that has nothing to say is left out."""
    made = {
        "SCENARIO": [each["scenario"] for each in results],
        "POLICY": [each["policy"] or "-" for each in results],
        "OFFERED\n/s": _cells(results, "offered_qps"),
        "ACHIEVED\n/s": _cells(results, "achieved_qps"),
        "SUSTAINED\n/s": _cells(results, "sustained_qps"),
        "TTFT ms\np50": _cells(results, "ttft_p50_s", 1e3),
        "TTFT ms\np90": _cells(results, "ttft_p90_s", 1e3),
        "TTFT ms\np99": _cells(results, "ttft_p99_s", 1e3),
        "ms/TOKEN\np50": _cells(results, "tpot_p50_s", 1e3),
        "E2E ms\np50": _cells(results, "e2e_p50_s", 1e3),
        "E2E ms\np99": _cells(results, "e2e_p99_s", 1e3),
        "GOODPUT\n%": _cells(results, "goodput", 100),
        "ERRORS": [str(each["errors"]) for each in results],
        "LOST": [str(each["lost_tokens"]) for each in results],
        "REPEATED": [str(each["repeated_tokens"]) for each in results],
        "RESUMED": [str(each["resumed"]) for each in results],
        "ROUTER\nMiB": _cells(results, "router_rss_peak_bytes", 1 / (1 << 20)),
        "LATE\np99 ms": _cells(results, "lateness_p99_s", 1e3),
    }
    return {header: cells for header, cells in made.items() if header == "POLICY" or set(cells) != {"-"}}


def _figures(total: Measurement) -> dict[str, Any]:
    return {
        "requests": total.offered,
        "answered": total.answered,
        "offered_qps": total.offered / total.window_s,
        "achieved_qps": total.ended / total.window_s,
        "tokens_per_s": total.tokens / total.window_s,
        **{f"ttft_p{percent}_s": total.ttft.percentile(percent) for percent in (50, 90, 99)},
        **{f"tpot_p{percent}_s": total.tpot.percentile(percent) for percent in (50, 90, 99)},
        **{f"e2e_p{percent}_s": total.e2e.percentile(percent) for percent in (50, 90, 99)},
        "goodput": total.good / total.offered if total.offered else None,
        "errors": total.errors.total(),
        "errors_by_reason": dict(total.errors),
        "lost_tokens": total.lost,
        "repeated_tokens": total.repeated,
        "resumed": total.resumed,
        "lateness_p99_s": total.late.percentile(99),
    }


def _cells(results: Sequence[Mapping[str, Any]], key: str, factor: float = 1.0) -> list[str]:
    return ["-" if each[key] is None else _short(each[key] * factor) for each in results]


def _short(value: float) -> str:
    """Three figures: 1.23, 12.3, 1,234."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
