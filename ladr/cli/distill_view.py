"""How a distillation is shown while it goes on: live on a terminal, a line a step in a pipe, JSON Lines if asked for."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ladr.cli.output import as_dict, emit, escape, line
from ladr.distill_calls import distill_state
from ladr.v1 import distiller_pb2 as pb

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60  # columns of a curve


class View(Protocol):
    """Told of everything once, inside its `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def take(self, message: pb.WatchDistillJobResponse) -> None:
        """What happened."""

    def waits(self, others: str) -> None:
        """The job is queued, and what for."""

    def away(self, where: str) -> None:
        """The service does not answer now; its return is waited for."""


def view_for(output: str) -> View:
    """The view that fits: `output` is text or json."""
    if output == "json":
        return JsonView()
    return LiveView() if sys.stdout.isatty() else LinesView()


class JsonView:
    """Every message a line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, message: pb.WatchDistillJobResponse) -> None:
        emit(as_dict(message))

    def waits(self, others: str) -> None:
        line(others, err=True)

    def away(self, where: str) -> None:
        line(f"{where} does not answer; waiting for it", err=True)


class LinesView:
    """A line for each state and each progress."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, message: pb.WatchDistillJobResponse) -> None:
        if message.HasField("job"):
            line(f"{message.job.id} {distill_state(message.job)}")
        else:
            line("  ".join(part for part in (_steps(message.progress), *_facts(message.progress)) if part))
        sys.stdout.flush()

    def waits(self, others: str) -> None:
        line(others, err=True)

    def away(self, where: str) -> None:
        line(f"{where} does not answer; waiting for it", err=True)


class LiveView:
    """A bar, the losses by part and their curve, drawn again as they change."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._job = pb.DistillJob()
        self._progress = pb.DistillProgress()
        self._curve = Curve()
        self._note = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def take(self, message: pb.WatchDistillJobResponse) -> None:
        self._note = ""
        if message.HasField("job"):
            self._job = message.job
            if message.job.HasField("progress") and not self._progress.HasField("time"):
                self._progress = message.job.progress
        else:
            self._progress = message.progress
            if message.progress.phase == pb.DISTILL_PHASE_TRAIN and "total" in message.progress.losses:
                self._curve.add(message.progress.losses["total"])
        self._draw()

    def waits(self, others: str) -> None:
        self._say(others)

    def away(self, where: str) -> None:
        self._say(f"{where} does not answer; waiting for it")

    def _say(self, note: str) -> None:
        self._note = note
        self._draw()

    def _draw(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        progress = self._progress
        head = Text(f"{escape(self._job.id)}  {distill_state(self._job)}")
        if self._note:
            head.append(f"  {escape(self._note)}", style="yellow")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            _phase(progress),
            ProgressBar(total=max(1, progress.total_steps), completed=progress.step, width=30),
            f"{progress.step}/{progress.total_steps or '?'}",
            *_pace(progress),
        )
        rows: list[RenderableType] = [head, bar]
        if progress.losses:
            rows.append(Text(_losses(progress)))
        if self._curve.count > 1:
            first, last = self._curve.ends
            rows.append(Text(f"{first:.3g} {self._curve.drawn()} {last:.3g}"))
        return Group(*rows)


class Curve:
    """The course of a number in bounded memory: neighbours become their mean when there are too many."""

    def __init__(self, width: int = _WIDTH) -> None:
        self._width = width
        self._each = 1  # values in one point
        self._points: list[float] = []
        self._open: list[float] = []
        self._first = self._last = 0.0
        self.count = 0

    @property
    def ends(self) -> tuple[float, float]:
        """The first value and the last."""
        return self._first, self._last

    def add(self, value: float) -> None:
        self._first, self._last = (self._first if self.count else value), value
        self.count += 1
        self._open.append(value)
        if len(self._open) < self._each:
            return
        self._points.append(sum(self._open) / len(self._open))
        self._open = []
        if len(self._points) == 2 * self._width:
            self._points = [(one + two) / 2 for one, two in zip(self._points[::2], self._points[1::2], strict=True)]
            self._each *= 2

    def drawn(self) -> str:
        """The points as blocks, at most twice the width."""
        return sparkline([*self._points, *([sum(self._open) / len(self._open)] if self._open else [])])


def sparkline(values: list[float]) -> str:
    """Each value as a block: the least the lowest, the greatest the highest; one that is not finite is a space."""
    finite = [value for value in values if abs(value) < float("inf")]
    low, high = min(finite, default=0), max(finite, default=0)
    span = high / 2 - low / 2  # of halves, which no two finite numbers are too far apart for
    top = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round((v / 2 - low / 2) / span * top) if span else 0] if abs(v) < float("inf") else " " for v in values
    )


def duration(seconds: float) -> str:
    """70 → "1m10s"."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def phase_name(progress: pb.DistillProgress) -> str:
    """DISTILL_PHASE_TRAIN → "train"; "-" before the first, or for one that this client does not know."""
    if not progress.phase or progress.phase not in pb.DistillPhase.values():
        return "-"
    return pb.DistillPhase.Name(progress.phase).removeprefix("DISTILL_PHASE_").lower()


def _phase(progress: pb.DistillProgress) -> str:
    return f"{phase_name(progress):<8}"


def _steps(progress: pb.DistillProgress) -> str:
    return f"{phase_name(progress)} {progress.step}/{progress.total_steps or '?'}"


def _facts(progress: pb.DistillProgress) -> list[str]:
    return [_losses(progress), *_pace(progress)]


def _pace(progress: pb.DistillProgress) -> list[str]:
    found = []
    if progress.tokens_per_second:
        found.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    if progress.HasField("remaining"):
        found.append(f"{duration(progress.remaining.ToTimedelta().total_seconds())} left")
    if progress.memory_bytes:
        found.append(f"{progress.memory_bytes / 2**30:.1f} GiB")
    return found


def _losses(progress: pb.DistillProgress) -> str:
    """loss 3.21 (kl 1.2, task 2.0)"""
    parts = dict(progress.losses)
    total = parts.pop("total", None)
    shown = ", ".join(f"{escape(name)} {value:.4g}" for name, value in sorted(parts.items()))
    if total is None:
        return shown
    return f"loss {total:.4g}" + (f" ({shown})" if shown else "")
