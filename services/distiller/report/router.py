"""The judge that is a model behind the Router: it is asked which answer is better, twice, with the answers' places swapped.

If it says the same place both times, its place decided and not the answer: a tie. What it says without naming one of them is
a tie, too. A router that is away is asked again for about a minute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from ladr.errors import InvalidRequest, LadrError, NotFound, PromptTooLong
from ladr.sync_client import SyncClient
from services.distiller.refused import Refused
from services.distiller.report.judge import LOST, TIED, WON, Battle, Verdict

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Between two tries of one question."""
AT_ONCE = 4
"""Questions that the router has from us."""
ANSWER_TOKENS = 8
_TIMEOUT_S = 120.0
_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INTERNAL,
    }
)
_PROMPT = """Two assistants answered the same question. Say which answer is better: more helpful, more correct, clearer.

[Question]
{question}

[Answer A]
{a}

[Answer B]
{b}

Which answer is better? Say A or B, and nothing else."""


@dataclass(eq=False)
class RouterJudge:
    """A model by its served name.

    Args: pause: waits so many seconds; it is called before each question, too, with 0, and may raise to give up.
    """

    client: SyncClient
    model: str
    pause: Callable[[float], None] = time.sleep

    def judge(self, battles: Sequence[Battle]) -> list[Verdict]:
        """Raises: Refused: JUDGE_UNAVAILABLE. What `pause` raises."""
        prompts = [prompt for battle in battles for prompt in (asking(battle), asking(battle, swapped=True))]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            said = list(threads.map(self._said, prompts))
        return [verdict(one, other) for one, other in zip(said[::2], said[1::2], strict=True)]

    def _said(self, prompt: str) -> str:
        """What the model says; "" if the question is too long for it."""
        self.pause(0.0)
        message = {"role": "user", "content": prompt}
        for pause_s in (*PAUSES_S, None):
            try:
                answer = self.client.complete(
                    messages=[message],
                    model=self.model,
                    max_tokens=ANSWER_TOKENS,
                    temperature=0.0,
                    priority="batch",
                    timeout=_TIMEOUT_S,
                )
                return answer.text
            except PromptTooLong:
                return ""
            except (NotFound, InvalidRequest) as error:
                raise _unavailable(error) from error
            except LadrError as error:
                if pause_s is None or error.code not in _AGAIN:
                    raise _unavailable(error) from error
                asked_s = error.retry_after.total_seconds() if error.retry_after else 0.0
                self.pause(max(pause_s, min(asked_s, PAUSES_S[-1])))
        raise AssertionError("the last try returns or raises")


def asking(battle: Battle, swapped: bool = False) -> str:
    """What the judge is asked. Swapped: the second answer is A."""
    a, b = (battle.second, battle.first) if swapped else (battle.first, battle.second)
    turns = [f"{one['role']}: {one.get('content') or ''}" for one in battle.question.messages]
    question = battle.question.asked if len(turns) == 1 else "\n\n".join(turns)
    return _PROMPT.format(question=question, a=a.text, b=b.text)


def verdict(said: str, said_swapped: str) -> Verdict:
    """Of what the judge said to a battle, and to the same with places swapped."""
    one, other = named(said), named(said_swapped)
    if not one or not other:
        return Verdict(TIED, unreadable=True)
    if one == other:
        return Verdict(TIED, swayed=True)
    return Verdict(WON if one == "A" else LOST)


def named(said: str) -> str:
    """The answer that is named: "A" or "B"; "" if that is none or both."""
    letters = set(re.findall(r"\b[AB]\b", said)) or set(re.findall(r"^\W*([ab])\W*$", said.lower()))
    return letters.pop().upper() if len(letters) == 1 else ""


def _unavailable(error: LadrError) -> Refused:
    return Refused(
        "JUDGE_UNAVAILABLE",
        f"the judge behind the router does not answer ({error.reason}: {error.message}): see that a worker serves"
        " evaluation.judge_model, then resume the job; what was judged already is kept",
    )
