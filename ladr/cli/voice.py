"""How `ladr up` tells what goes on: bars on a terminal, lines in a pipe, JSON Lines if asked for."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from ladr.cli.output import emit, escape, line


class Voice(Protocol):
    """Told of every event once. `streams`: an answer is shown while it comes."""

    streams: bool

    def state(self, name: str, state: str, share: float | None = None) -> None:
        """While it starts: how far one of the processes is; `share` 0 to 1 of its models is loaded."""

    def note(self, text: str) -> None:
        """Something that a person should know: a crash, a restart."""

    def event(self, kind: str, text: str, **facts: Any) -> None:
        """A step of the whole: `text` for people, `kind` and `facts` for programs."""

    def close(self) -> None:
        """The start is over: no more `state`."""


class LinesVoice:
    """Plain lines: states and notes on stderr, steps on stdout."""

    streams = True

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def state(self, name: str, state: str, share: float | None = None) -> None:
        if self._states.get(name) != state:
            self._states[name] = state
            line(f"{name}: {state}", err=True)

    def note(self, text: str) -> None:
        line(text, err=True)

    def event(self, kind: str, text: str, **facts: Any) -> None:
        for each in text.splitlines():
            line(each)
        sys.stdout.flush()

    def close(self) -> None:
        pass


class JsonVoice:
    """Every event a JSON document on a line of stdout."""

    streams = False

    def __init__(self) -> None:
        self._states: dict[str, tuple[str, float | None]] = {}

    def state(self, name: str, state: str, share: float | None = None) -> None:
        if self._states.get(name) != (state, share):
            self._states[name] = (state, share)
            emit({"event": "state", "name": name, "state": state, "share": share})

    def note(self, text: str) -> None:
        emit({"event": "note", "text": text})

    def event(self, kind: str, text: str, **facts: Any) -> None:
        emit({"event": kind, **facts})

    def close(self) -> None:
        pass


class TerminalVoice(LinesVoice):
    """A bar for each process while it starts, then lines."""

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[name]}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def state(self, name: str, state: str, share: float | None = None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task("", total=1.0, name=escape(name))
        self._progress.update(self._tasks[name], description=escape(state), completed=share or 0.0)

    def note(self, text: str) -> None:
        self._progress.console.print(escape(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def voice_for(output: str) -> Voice:
    """JSON if asked for, bars if a person looks on, else lines."""
    if output == "json":
        return JsonVoice()
    return TerminalVoice() if sys.stderr.isatty() else LinesVoice()
