"""A job's life against a second, dumb telling of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from services.distiller.machine import (
    MOST_DEATHS,
    Cancel,
    Die,
    Fail,
    Failure,
    Job,
    Mark,
    Refused,
    Resume,
    Start,
    Succeed,
    Yield,
    step,
)

FAILURE = Failure("X", "x")
MARKS = st.builds(Mark, st.sampled_from(["", "a", "b"]), st.integers(3, 4), st.integers(0, 3))


class Life(RuleBasedStateMachine):
    """The dumb telling: the state is looked up in the whole history of what counted."""

    starts = Bundle("starts")

    @initialize()
    def begin(self) -> None:
        self.now_ms = 1
        self.job = Job("id", "{}", "d", 1, 1)
        self.history: list[str] = []
        self.number = 0
        self.places: list[Mark] = []  # of the deaths since somebody asked for the job, the last one last

    def happens(self, event: object) -> None:
        self.now_ms += 1
        self.job = step(self.job, event, self.now_ms)  # type: ignore[arg-type]

    def state(self) -> str:
        return self.history[-1] if self.history else "queued"

    @rule(target=starts)
    def start(self) -> int:
        if self.state() != "queued":
            with pytest.raises(Refused):
                self.happens(Start())
        else:
            self.happens(Start())
            self.number += 1
            self.history.append("running")
        return self.number

    def counts(self, number: int) -> bool:
        return self.state() == "running" and number == self.number

    @rule(number=starts)
    def succeed(self, number: int) -> None:
        if self.counts(number):
            self.history.append("succeeded")
        self.happens(Succeed(number, "students/id", (("kl", 0.5),)))

    @rule(number=starts)
    def fail(self, number: int) -> None:
        if self.state() in ("queued", "running") and number == self.number:
            self.history.append("failed")
        self.happens(Fail(number, FAILURE))

    @rule(number=starts, place=MARKS)
    def die(self, number: int, place: Mark) -> None:
        if self.counts(number):
            self.places.append(place)
            stuck = 1
            for before, after in zip(self.places[::-1][1:], self.places[::-1], strict=False):
                further = (after.phase, after.step) > (before.phase, before.step)
                if further and after.checkpoint != before.checkpoint:
                    break
                stuck += 1
            self.history.append("failed" if stuck >= MOST_DEATHS else "queued")
        self.happens(Die(number, place, FAILURE))

    @rule(number=starts)
    def give_way(self, number: int) -> None:
        if self.counts(number):
            self.history.append("queued")
        self.happens(Yield(number))

    @rule()
    def cancel(self) -> None:
        if self.state() in ("queued", "running"):
            self.history.append("cancelled")
        self.happens(Cancel())

    @rule()
    def resume(self) -> None:
        if self.state() in ("failed", "cancelled"):
            self.happens(Resume())
            self.history.append("queued")
            self.places = []
        else:
            with pytest.raises(Refused):
                self.happens(Resume())

    @invariant()
    def it_is_as_told(self) -> None:
        if not hasattr(self, "job"):
            return
        job = self.job
        assert job.state == self.state()
        assert job.starts == self.number
        assert (job.finished_ms > 0) == (job.state in ("succeeded", "failed", "cancelled"))
        assert (job.failure is not None) == (job.state == "failed")
        assert (job.student != "") == (job.state == "succeeded")
        assert job.deaths <= MOST_DEATHS


TestLife = Life.TestCase


def test_a_job_that_goes_on_keeps_its_place_and_one_that_is_resumed_goes_to_the_end() -> None:
    job = step(Job("id", "{}", "d", 5, 5), Start(), 10)
    for event in (Yield(1), Die(1, Mark(), FAILURE)):
        assert step(job, event, 20).queued_ms == 5
    assert step(step(job, Cancel(), 20), Resume(), 30).queued_ms == 30


def test_deaths_at_new_checkpoints_are_forgiven_for_ever() -> None:
    job = Job("id", "{}", "d", 5, 5)
    for number in range(1, 50):
        job = step(step(job, Start(), 10), Die(number, Mark(f"step-{number}", 3, number), FAILURE), 20)
        assert (job.state, job.deaths) == ("queued", 1)
