"""Records whose answers a model behind the router gives: prompts in, answers out, as durable work of low priority.

At most `WINDOW` requests are out at once. Each answer is a line of a log, in the records' order, behind a first line that says
of which file; a trainer that starts again goes on behind the last whole line. A request is named by job and line, so asking
again finds what was answered meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladr.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    JobsUnavailable,
    LadrError,
    NotFound,
    Overloaded,
    Unreachable,
)
from ladr.sync_client import SyncClient
from ladr.v1 import generation_pb2, generations_pb2
from services.distiller.data.corpus import LINE_BYTES
from services.distiller.data.record import Broken, Record, read
from services.distiller.digest import sha256
from services.distiller.refused import Refused

WINDOW = 64
"""Requests that are out at once; so many failures without an answer end the job, too."""
PATIENCE_S = 600.0
"""How long the router may be away."""
_AGAIN_S = (0.05, 2.0)  # pause before the first repetition, and the longest
_PASSING = (Cancelled, DeadlineExceeded, Draining, JobsUnavailable, Overloaded, Unreachable)
_WAITING = {
    generations_pb2.GENERATION_STATE_SCHEDULED,
    generations_pb2.GENERATION_STATE_QUEUED,
    generations_pb2.GENERATION_STATE_RUNNING,
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """Who answers, and how.

    Attributes: model: served name or alias. tokens: longest answer. name: begins the names of the requests.
    """

    model: str
    tokens: int
    name: str


@dataclass
class Count:
    """Records so far: answered, cut off at the longest answer, failed with the last reason."""

    answered: int = 0
    cut: int = 0
    failed: int = 0
    reason: str = ""

    @property
    def all(self) -> int:
        return self.answered + self.cut + self.failed

    def add(self, line: dict[str, Any]) -> None:
        if "failed" in line:
            self.failed, self.reason = self.failed + 1, line["failed"]
        elif line["cut"]:
            self.cut += 1
        else:
            self.answered += 1


def prompt(record: Record) -> list[dict[str, str]]:
    """The conversation up to where the next answer belongs: without the last answer, if it has one.

    Raises: Broken: nothing is asked, or tools are part of it, which the router does not take.
    """
    messages = list(record.messages)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise Broken("it asks nothing: answers are made for records of messages with a user's turn")
    if record.tools or any(message.get("tool_calls") for message in messages):
        raise Broken("it has tools, with which no answer can be made through the router")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def gather(
    source: Path,
    target: Path,
    asked: Asked,
    router: SyncClient,
    told: Callable[[Count], None],
    check: Callable[[], None],
) -> Count:
    """Answer each record of `source`, then put those that were answered whole into `target`, in one step.

    Args: told: hears how far it is. check: raises what ends the work early; what is answered by then is kept.
    Raises: Refused: a record that cannot be asked, a file that is not what it was when it was begun, no answer at all (then a
        resumed job asks again from the first), or the router is away for too long.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = target.with_name("log.jsonl")
    count = _resumed(lines, sha256(source))
    ask = _Asking(asked, router, check)
    waiting: deque[tuple[int, list[dict[str, str]]]] = deque()
    prompts = _prompts(source, count.all)
    with lines.open("ab") as file:
        told(count)
        while True:
            while len(waiting) < WINDOW and (one := next(prompts, None)) is not None:
                waiting.append(one)
                ask.submit(*one)
            if not waiting:
                break
            number, messages = waiting.popleft()
            line = ask.answer(number, messages)
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            file.flush()
            ask.forget(number)
            count.add(line)
            told(count)
            if count.failed == count.all >= WINDOW:
                break
        os.fsync(file.fileno())
    if not count.answered:
        for number, _ in waiting:  # or they would be found failed, and not asked again
            ask.take_back(number)
        lines.unlink()
        raise Refused("NOT_ANSWERED", _why(count))
    log.info("%d records answered, %d cut off, %d failed %s", count.answered, count.cut, count.failed, count.reason)
    _finish(lines, target)
    return count


class _Asking:
    """The calls, each repeated while the router is away."""

    def __init__(self, asked: Asked, router: SyncClient, check: Callable[[], None]) -> None:
        self._asked = asked
        self._router = router
        self._check = check

    def submit(self, number: int, messages: list[dict[str, str]]) -> None:
        try:
            self._patient(
                lambda: self._router.submit_generation(
                    messages=messages,
                    model=self._asked.model,
                    max_tokens=self._asked.tokens,
                    temperature=0.0,
                    priority="batch",
                    request_id=self._name(number),
                )
            )
        except InvalidRequest as error:
            message = f"line {number} of the data cannot be asked: {error.message}; mend it or take it out"
            raise Refused("DATA_BROKEN", message) from None
        except AlreadyExists:
            message = f"line {number} of the data was asked otherwise before: put the file back, or begin a new job"
            raise Refused("DATA_CHANGED", message) from None

    def answer(self, number: int, messages: list[dict[str, str]]) -> dict[str, Any]:
        """The line of the log, once the job has ended; one that the router has lost is asked again."""
        pause_s = _AGAIN_S[0]
        while True:
            try:
                job = self._patient(lambda: self._router.get_generation(self._name(number)))
            except NotFound:
                self.submit(number, messages)
                continue
            if job.state not in _WAITING:
                break
            self._check()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S[1])
        if job.state != generations_pb2.GENERATION_STATE_SUCCEEDED:
            state = generations_pb2.GenerationState.Name(job.state).removeprefix("GENERATION_STATE_").lower()
            return {"failed": job.error.message or f"the request was {state}"}
        cut = job.result.finished.reason == generation_pb2.FINISH_REASON_LENGTH
        return {"cut": cut, "messages": [*messages, {"role": "assistant", "content": job.result.text}]}

    def forget(self, number: int) -> None:
        """What was answered is kept here, and no longer there."""
        try:
            self._patient(lambda: self._router.delete_generation(self._name(number)))
        except LadrError as error:  # it goes when its time is over
            log.debug("not deleted: %s", error)

    def take_back(self, number: int) -> None:
        """Nobody waits for it any more."""
        with suppress(LadrError):  # it has ended, or is not there
            self._patient(lambda: self._router.cancel_generation(self._name(number)))
        self.forget(number)

    def _patient(self, call: Callable[[], Any]) -> Any:
        until_s, pause_s = time.monotonic() + PATIENCE_S, _AGAIN_S[0]
        while True:
            self._check()
            try:
                return call()
            except _PASSING as error:
                if time.monotonic() > until_s:
                    message = f"{error.message}; see to the router, then resume the job"
                    raise Refused("ROUTER_UNREACHABLE", message) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S[1])

    def _name(self, number: int) -> str:
        return f"{self._asked.name}-{number}"


def _prompts(source: Path, skip: int) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """What is asked for each record behind the first `skip`, with the number of its line, from 1."""
    with source.open("rb") as file:
        number = 0
        while line := file.readline(LINE_BYTES):
            number += 1
            if not line.strip():
                continue
            if skip:
                skip -= 1
                continue
            try:
                yield number, prompt(read(line))
            except Broken as error:
                raise Refused("DATA_BROKEN", f"line {number} of the data: {error}; mend it or take it out") from None


def records(source: Path) -> int:
    """How many there are."""
    with source.open("rb") as file:
        return sum(1 for line in iter(lambda: file.readline(LINE_BYTES), b"") if line.strip())


def _resumed(lines: Path, digest: str) -> Count:
    """What an earlier start has done with this very file; a line that a kill tore is cut off."""
    count, whole = Count(), 0
    with lines.open("ab+") as file:
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            value = json.loads(line)
            if whole:
                count.add(value)
            elif value["source"] != digest:
                raise Refused(
                    "DATA_CHANGED", "the data is not what was asked at first: put the file back, or begin a new job"
                )
            whole += len(line)
        file.truncate(whole)
        if not whole:
            file.write(json.dumps({"source": digest}).encode() + b"\n")
    return count


def _finish(lines: Path, target: Path) -> None:
    new = target.with_name(target.name + ".new")
    with lines.open("rb") as file, new.open("wb") as out:
        for line in file:
            value = json.loads(line)
            if not value.get("cut", True):
                out.write(json.dumps({"messages": value["messages"]}, ensure_ascii=False).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())
    new.replace(target)
    lines.unlink()


def _why(count: Count) -> str:
    if not count.all:
        return "the data has no record to answer: give a file with more lines"
    if count.cut == count.all:
        return "every answer was cut off: begin a new job with more data.answer_tokens"
    cut = f"{count.cut} answers were cut off at data.answer_tokens, and " if count.cut else ""
    return (
        f"no record was answered: {cut}{count.failed} failed, the last one with: {count.reason}; see to"
        " data.answers_from and the router's workers, then resume the job"
    )
