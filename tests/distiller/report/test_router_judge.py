"""The judge behind a router, before a real server that plays the router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from ladr.errors import Draining, LadrError, NotFound, NoWorker, PromptTooLong
from ladr.sync_client import SyncClient
from services.distiller.refused import Refused
from services.distiller.report.answers import Answer
from services.distiller.report.judge import LOST, TIED, WON, Battle, Verdict
from services.distiller.report.questions import Question
from services.distiller.report.router import PAUSES_S, RouterJudge, asking, named
from tests.client.fake_router import FakeRouter, delta, finished, serving, started

Says = Callable[[str, str], str]


class Scripted(FakeRouter):
    """Says what `says` makes of the answers A and B; the first so many requests fail."""

    def __init__(self) -> None:
        super().__init__()
        self.says: Says = lambda a, b: "A"
        self.failures: list[LadrError] = []

    async def Generate(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        if self.failures:
            await self._abort(context, self.failures.pop())
        text = request.messages[0].content
        a = text.partition("[Answer A]\n")[2].partition("\n\n[Answer B]")[0]
        b = text.partition("[Answer B]\n")[2].partition("\n\nWhich answer")[0]
        for message in (started(), delta(self.says(a, b), 0), finished(1)):
            await context.write(message)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[Scripted]:
    async with serving(Scripted()) as fake:
        yield fake  # type: ignore[misc]  # it gives back what it was given


def battle(first: str = "good", second: str = "bad") -> Battle:
    question = Question(({"role": "user", "content": "Which {one}?"},), (), (1,))
    return Battle(question, Answer(first, 1, True), Answer(second, 1, True))


async def judged(router: Scripted, *battles: Battle, pause: Callable[[float], None] = lambda s: None) -> list[Verdict]:
    def ask() -> list[Verdict]:
        with SyncClient(router.address) as client:
            return RouterJudge(client, "judge", pause).judge(battles)

    return await asyncio.to_thread(ask)


async def test_each_battle_is_asked_twice_with_places_swapped_and_the_better_answer_wins_in_both(
    router: Scripted,
) -> None:
    router.says = lambda a, b: "A" if a == "good" else "The better answer is B."
    assert await judged(router, battle(), battle("bad", "good")) == [Verdict(WON), Verdict(LOST)]
    assert len(router.requests) == 4
    texts = {one.messages[0].content for one in router.requests}
    assert texts == {asking(battle()), asking(battle(), swapped=True)}
    assert "Which {one}?" in texts.pop()
    request = router.requests[0]
    assert (request.model, request.sampling.temperature) == ("judge", 0)


@pytest.mark.parametrize("place", ["A", "B"])
async def test_a_judge_that_likes_a_place_makes_ties(router: Scripted, place: str) -> None:
    router.says = lambda a, b: place
    assert await judged(router, battle()) == [Verdict(TIED, swayed=True)]


@pytest.mark.parametrize("says", ["I like both A and B", "neither", "", "A banana is what B says"])
async def test_a_judge_that_names_no_winner_makes_a_tie_that_is_counted(router: Scripted, says: str) -> None:
    router.says = lambda a, b: says if a == "good" else "B"
    assert await judged(router, battle()) == [Verdict(TIED, unreadable=True)]


async def test_a_question_that_is_too_long_for_the_judge_is_a_tie(router: Scripted) -> None:
    router.failures = [PromptTooLong("it is too long") for _ in range(2)]
    assert await judged(router, battle()) == [Verdict(TIED, unreadable=True)]


async def test_a_router_that_is_away_for_a_while_is_asked_again(router: Scripted) -> None:
    router.says = lambda a, b: "A" if a == "good" else "B"
    router.failures = [NoWorker("none"), Draining("going"), NoWorker("none")]
    pauses: list[float] = []
    assert await judged(router, battle(), pause=pauses.append) == [Verdict(WON)]
    assert len([one for one in pauses if one]) == 3


async def test_a_router_that_stays_away_is_a_clear_failure_after_so_many_tries() -> None:
    router = Scripted()
    async with serving(router):
        address = router.address
    router.address = address  # nobody listens there now
    pauses: list[float] = []
    with pytest.raises(Refused) as refused:
        await judged(router, battle(), pause=pauses.append)
    assert refused.value.reason == "JUDGE_UNAVAILABLE"
    assert "resume" in refused.value.message
    assert set(pauses) == {0.0, *PAUSES_S}


async def test_a_judge_that_nobody_serves_is_a_clear_failure_at_once(router: Scripted) -> None:
    router.failures = [NotFound("no such model") for _ in range(2)]
    with pytest.raises(Refused, match="NOT_FOUND"):
        await judged(router, battle())
    assert len(router.requests) <= 2


class Enough(Exception):
    """Plays a job that is stopped."""


async def test_a_job_that_is_stopped_waits_for_no_router(router: Scripted) -> None:
    def stopped(_: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        await judged(router, battle(), pause=stopped)
    assert not router.requests


def test_what_was_said_before_is_part_of_the_question() -> None:
    turns = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "So?"},
    )
    text = asking(Battle(Question(turns, (), (1,)), Answer("x", 1, True), Answer("y", 1, True)))
    assert "user: Hi\n\nassistant: \n\nuser: So?" in text


@pytest.mark.parametrize(
    ("said", "letter"),
    [("A", "A"), (" b.", "B"), ("**B**", "B"), ("Answer A is better", "A"), ("a or b", ""), ("AB", "")],
)
def test_the_letter_is_read(said: str, letter: str) -> None:
    assert named(said) == letter
