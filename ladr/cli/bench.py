"""`ladr bench`: a load, and what it is like to be one of its requests."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from ladr.bench.arrivals import Arrival, Length, Shape
from ladr.bench.machine import machine
from ladr.bench.scenarios import MODEL, SCENARIOS
from ladr.bench.trace import TraceError, read_trace
from ladr.channel import DEFAULT_ADDRESS
from ladr.cli.bench_options import POLICIES, Asked, bench_options, refuse
from ladr.cli.flags import config_option
from ladr.cli.keeper import ChildFailed
from ladr.cli.misuse import Misuse
from ladr.cli.output import emit, escape, line, lines, output_option, table
from ladr.cli.service import service_argv
from ladr.config import RouterSettings

if TYPE_CHECKING:  # at run time only once it is known that what they need is here
    from ladr.bench.run import Load, Progress, Tally

_INSTALL = "pip install 'ladr[bench]', or in a checkout `make setup-dev`"
_ADDRESS_RATE = 5.0
_ADDRESS_SHAPE = Shape("poisson", Length(128), Length(64), pulse=50)
_ROOM = 1.25  # a search looks up to so many times the fleet's capacity


@click.command(epilog="Other settings of the mesh come from ladr.yaml and the environment (LADR_ROUTER__ALPHA=0.9).")
@bench_options
@config_option
@output_option
def bench(scenarios: Sequence[str], address: str | None, config_file: Path | None, output: str, **given: Any) -> None:
    """Send a load and measure it: latency from the intended send time, goodput, tokens lost or repeated.

    With --scenario against a mesh of its own under each --policy, else against a running router.
    """
    asked = Asked(**given)
    refuse(asked, scenarios, address)
    _need("hdrh", "hdrhistogram")
    if asked.report:
        _need("matplotlib", "matplotlib")
        _check_report(asked.report)
    trace = tuple(_trace(asked.trace)) if asked.trace else ()
    progress = _progress if output == "text" and sys.stderr.isatty() else None
    try:
        if scenarios:
            tallies = _in_meshes(_all(scenarios, list(SCENARIOS)), asked, trace, config_file, progress)
        else:
            tallies = _at(address or os.environ.get("LADR_ADDRESS") or DEFAULT_ADDRESS, asked, trace, progress)
    except ChildFailed as failed:
        for each in failed.tail:
            line(f"  {each}", err=True)
        kind = Misuse if failed.code == Misuse.exit_code else click.ClickException
        raise kind(str(failed)) from None
    finally:
        if progress:
            progress("")
    _show(tallies, asked.scale if scenarios else 1.0, asked.report, output)


def _in_meshes(
    names: Sequence[str], asked: Asked, trace: tuple[Arrival, ...], config_file: Path | None, progress: Progress | None
) -> list[Tally]:
    from ladr.bench.rounds import in_meshes

    service_argv("router", None)  # says what to install where there are no services
    trace = tuple(replace(each, model=MODEL) for each in trace)
    loads = []
    for name in names:
        preset = SCENARIOS[name].scaled(asked.scale)
        scenario = replace(preset, shape=asked.shape(preset.shape))
        share = _ROOM if asked.find_rate else asked.load or scenario.load
        rate_per_s = asked.rate or share * scenario.capacity_per_s
        loads.append((scenario, _load(name, scenario.shape, rate_per_s, MODEL, asked, trace)))
    policies = _all(asked.policies, POLICIES) or [RouterSettings().policy]
    return asyncio.run(in_meshes(loads, policies, asked.rounds, config_file, progress))


def _at(address: str, asked: Asked, trace: tuple[Arrival, ...], progress: Progress | None) -> list[Tally]:
    from ladr.bench.rounds import at_address

    load = _load(address, asked.shape(_ADDRESS_SHAPE), asked.rate or _ADDRESS_RATE, asked.model, asked, trace)
    return asyncio.run(at_address(address, load, asked.rounds, progress))


def _load(name: str, shape: Shape, rate_per_s: float, model: str, asked: Asked, trace: tuple[Arrival, ...]) -> Load:
    from ladr.bench.measure import Slo
    from ladr.bench.run import Load

    return Load(
        scenario=name,
        shape=shape,
        rate_per_s=rate_per_s,
        duration_s=asked.duration,
        warmup_s=asked.warmup if asked.warmup is not None else 0.0 if trace else asked.duration / 4,
        seed=asked.seed,
        slo=Slo(asked.slo_ttft, asked.slo_e2e),
        timeout_s=asked.timeout,
        max_open=asked.max_open,
        connections=asked.connections,
        model=model,
        trace=trace,
        search=asked.find_rate,
        watch=asked.report is not None,
    )


def _all(names: Sequence[str], every: Sequence[str]) -> Sequence[str]:
    return every if "all" in names else list(dict.fromkeys(names))


def _need(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Misuse(f"ladr bench needs the package {package}, which is not installed here: {_INSTALL}")


def _check_report(where: Path) -> None:
    """Before the work and not after it."""
    if where.suffix not in ("", ".html", ".png"):
        raise click.UsageError(f"--report {where}: give a directory, FILE.html or FILE.png")
    if where.exists() and where.is_dir() == bool(where.suffix):
        raise click.UsageError(f"--report {where}: there is a {'directory' if where.suffix else 'file'} of that name")


def _trace(file: Path) -> Sequence[Arrival]:
    try:
        return read_trace(file)
    except TraceError as error:
        raise Misuse(str(error)) from None


def _progress(text: str) -> None:
    """One line on stderr that the next takes the place of; "" takes it away."""
    width = Console(stderr=True).width
    click.echo(f"\r\x1b[K{escape(text)[: width - 1]}", nl=False, err=True)


def _show(tallies: Sequence[Tally], scale: float, report: Path | None, output: str) -> None:
    from ladr.bench.report import LEAST, columns, result

    where = machine()
    results = [result(tally) for tally in tallies]
    document = {"machine": where, "scale": scale, "results": results}
    files: Sequence[Path] = ()
    if report:
        from ladr.bench.plots import write_report

        files = write_report(report, document, tallies)
    if output == "json":
        emit(document | {"files": [str(file) for file in files]})
        return
    line("  ".join(f"{key}: {value}" for key, value in (where | {"scale": scale}).items()))
    if sys.stdout.isatty():
        console = Console()
        console.print(table(columns(results), console.width, LEAST))
    else:
        lines(columns(results))
    for each in results:
        for note in each["notes"]:
            line(f"{each['scenario']}, {each['policy'] or 'the router'}: {note}")
    for file in files:
        line(f"wrote {file}")
