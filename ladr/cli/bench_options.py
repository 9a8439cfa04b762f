"""Options of `ladr bench`: what they are called, which go together, and what of a preset they stand in for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic import TypeAdapter, ValidationError

from ladr.bench.arrivals import Kind, Length, Shape
from ladr.bench.scenarios import DEFAULT_SCALE, SCENARIOS
from ladr.cli.asking import target
from ladr.config import RouterSettings
from ladr.config_types import AnyDuration, Duration

F = TypeVar("F", bound=Callable[..., Any])
POLICIES: tuple[str, ...] = get_args(RouterSettings.model_fields["policy"].annotation)


class _Seconds(click.ParamType[float]):
    """As in settings; `kind` says whether it may be nothing."""

    name = "duration"

    def __init__(self, kind: Any = Duration) -> None:
        self._kind = TypeAdapter(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(self._kind.validate_python(value).total_seconds())
        except ValidationError as error:
            self.fail(f"{value!r}: {error.errors()[0]['msg'].removeprefix('Value error, ')}", param, ctx)


class _Rate(click.ParamType[float]):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            rate_per_s = float(str(value).removesuffix("/s"))
        except ValueError:
            self.fail(f"{value!r}: give requests a second, such as 50 or 50/s", param, ctx)
        if not 0 < rate_per_s <= _MOST_PER_S:
            self.fail(f"{value}: give more than 0 and at most {_MOST_PER_S:,}", param, ctx)
        return rate_per_s


def _target(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return None if value is None else target(ctx, param, value)


_MOST_PER_S = 1_000_000
_COUNT = click.IntRange(1, 1_000_000)
_OPTIONS = (
    click.option(
        "--scenario",
        "scenarios",
        multiple=True,
        type=click.Choice([*SCENARIOS, "all"]),
        help="Start a mesh of simulated workers for this preset; may be given again.",
    ),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        type=click.Choice([*POLICIES, "all"]),
        help="Run it under this policy; may be given again. Else the default policy.",
    ),
    click.option("--address", "--target", metavar="HOST:PORT", callback=_target, help="Ask a running router instead."),
    click.option("--model", default="", help="Served name or alias; else the router's default."),
    click.option("-R", "--rate", type=_Rate(), metavar="N[/s]", help="Requests a second."),
    click.option("--load", type=click.FloatRange(0, 2, min_open=True), help="Rate as a share of the fleet's capacity."),
    click.option("--find-rate", is_flag=True, help="Look for the highest rate whose p99 keeps --slo-ttft."),
    click.option("--arrivals", type=click.Choice(get_args(Kind)), help="How requests arrive."),
    click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Recorded arrivals, JSON Lines."),
    click.option("--pulse", type=_COUNT, help="Requests in the pulse, on top of the rate."),
    click.option("--pulse-over", type=_Seconds(AnyDuration), help="Spread the pulse over this time; else it comes at once."),
    click.option("-d", "--duration", "--max-seconds", type=_Seconds(), default="20s", show_default=True, help="Of a run."),
    click.option("--warmup", type=_Seconds(AnyDuration), help="Requests before this do not count; a quarter of the run."),
    click.option("--prompt-tokens", type=_COUNT, help="Length of each prompt, at four bytes a token."),
    click.option("--answer-tokens", "--output-tokens", type=_COUNT, help="Length of each answer, as max_tokens."),
    click.option(
        "--scale",
        type=click.FloatRange(0.01, 8),
        default=DEFAULT_SCALE,
        show_default=True,
        help="Of a preset: its slots, rates and pulse times this.",
    ),
    click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Policies take turns in each."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of arrivals, lengths and prompts."),
    click.option("--slo-ttft", type=_Seconds(), default="2s", show_default=True, help="A good first token comes within this."),
    click.option("--slo-e2e", type=_Seconds(), help="A good answer ends within this."),
    click.option("--timeout", type=_Seconds(), default="60s", show_default=True, help="For a whole answer."),
    click.option("--max-open", type=_COUNT, default=4096, show_default=True, help="Most requests open at once."),
    click.option("--connections", type=click.IntRange(1, 64), default=2, show_default=True, help="To the router."),
    click.option(
        "--report",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Pictures too: a directory, FILE.html or FILE.png.",
    ),
)  # fmt: skip


def bench_options(command: F) -> F:
    """Decorator: all of them, which arrive as `scenarios`, `address` and the fields of Asked."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The options as they were given; None: not at all."""

    policies: Sequence[str]
    model: str
    rate: float | None
    load: float | None
    find_rate: bool
    arrivals: Kind | None
    trace: Path | None
    pulse: int | None
    pulse_over: float | None
    duration: float
    warmup: float | None
    prompt_tokens: int | None
    answer_tokens: int | None
    scale: float
    rounds: int
    seed: int
    slo_ttft: float
    slo_e2e: float | None
    timeout: float
    max_open: int
    connections: int
    report: Path | None

    def shape(self, preset: Shape) -> Shape:
        """A preset's shape with what was asked for in its place.

        Raises: click.UsageError: `pulse_over` of no pulse.
        """
        made = preset
        if self.arrivals:
            made = replace(made, kind=self.arrivals)
        if self.pulse:
            made = replace(made, kind="pulse", pulse=self.pulse)
        if self.pulse_over is not None:
            if made.kind != "pulse":
                raise click.UsageError(f"--pulse-over needs --arrivals pulse; these are {made.kind}")
            made = replace(made, pulse_over_s=self.pulse_over)
        if self.prompt_tokens:
            made = replace(made, prompt=Length(self.prompt_tokens))
        if self.answer_tokens:
            made = replace(made, answer=Length(self.answer_tokens))
        return made


def refuse(asked: Asked, scenarios: Sequence[str], address: str | None) -> None:
    """Raises: click.UsageError: options that do not go together."""
    if scenarios and address:
        raise click.UsageError("--scenario starts a mesh of its own, --address names a running one; give one of them")
    if scenarios and asked.model:
        raise click.UsageError("--model needs --address: the workers of a scenario serve one model")
    if asked.rate and asked.load:
        raise click.UsageError("--rate and --load both say how much; give one of them")
    if not scenarios and asked.policies:
        raise click.UsageError("--policy needs --scenario: a running router has its policy already")
    if not scenarios and asked.load:
        raise click.UsageError("--load needs --scenario: the capacity of a running fleet is not known; give --rate")
    if not scenarios and asked.find_rate and not asked.rate:
        raise click.UsageError("--find-rate needs --rate, the highest that it looks at, or --scenario")
    if asked.load and asked.find_rate:
        raise click.UsageError("--find-rate looks for the load itself; leave --load out")
    if asked.trace and (asked.rate or asked.load or asked.find_rate or asked.arrivals or asked.pulse):
        raise click.UsageError("--trace says itself when requests come; leave the rate and --arrivals out")
    if asked.pulse and asked.arrivals not in (None, "pulse"):
        raise click.UsageError(f"--pulse does not go with --arrivals {asked.arrivals}")
    if asked.warmup is not None and not asked.trace and asked.warmup >= asked.duration:
        raise click.UsageError("--warmup is as long as the run; make --duration longer")
