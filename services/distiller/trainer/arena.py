"""Battles of the student, trained and untrained, against its teacher, before the judge that the job asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from ladr.sync_client import SyncClient
from services.distiller.refused import Refused
from services.distiller.report import elo
from services.distiller.report.judge import Battle, Judge
from services.distiller.report.likelihood import MARGIN_NATS, LikelihoodJudge
from services.distiller.report.router import RouterJudge
from services.distiller.trainer import models
from services.distiller.trainer.answering import Asked, Said, cut
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.measuring import Measuring

T = TypeVar("T")
EXAMPLES, TEXT = 5, 2000
"""Battles that the report shows, and characters of a text there."""
_SIDES = ("student", "untrained")
_PART = "verdicts"


def arena(m: Measuring, questions: Asked, answers: Said) -> dict[str, Any]:
    """What the report says of the battles. Empty: there were none.

    Raises: Refused: JUDGE_UNAVAILABLE. Stopped.
    """
    if not questions.battles:
        return {}
    batches = cut(range(len(questions.battles)))

    def fight(judge: Judge | None) -> list[dict[str, Any]]:
        return m.each(_PART, batches, lambda places: _verdicts(judge, questions, answers, places))

    rows = fight(None) if m.notes.complete(_PART, len(batches)) else _with_judge(m, fight)
    scores = {side: [row[side]["score"] for row in rows] for side in _SIDES}
    every = [row[side] for row in rows for side in _SIDES]
    ratings = {side: elo.rate(scores[side], m.job.spec.training.seed) for side in _SIDES}
    return {
        "battles": len(rows),
        "answer_tokens": questions.answer_tokens,
        "judge": _described(m),
        "teacher_elo": elo.TEACHER_ELO,
        "prior_wins": elo.PRIOR_WINS,
        "ratings": {side: asdict(rating) for side, rating in ratings.items()},
        "win_rate": sum(scores["student"]) / len(rows),
        "win_rate_untrained": sum(scores["untrained"]) / len(rows),
        "swayed": sum(one["swayed"] for one in every),
        "unreadable": sum(one["unreadable"] for one in every),
        "examples": [
            {
                "question": questions.battles[place].asked[:TEXT],
                **{name: answers.battles[name][place].text[:TEXT] for name in ("teacher", "student")},
                "score": scores["student"][place],
            }
            for place in range(min(EXAMPLES, len(rows)))
        ],
    }


def figures(found: dict[str, Any]) -> dict[str, float]:
    """The main ones."""
    if not found:
        return {}
    rating = found["ratings"]["student"]
    return {
        "elo": rating["elo"],
        "elo_low": rating["low"],
        "elo_high": rating["high"],
        "elo_kept": rating["elo"] / found["teacher_elo"],
        "elo_untrained": found["ratings"]["untrained"]["elo"],
        "win_rate": found["win_rate"],
        "battles": found["battles"],
    }


def _verdicts(judge: Judge | None, questions: Asked, answers: Said, places: Sequence[int]) -> list[dict[str, Any]]:
    """Of the battles at these places, on both sides."""
    if judge is None:
        raise ValueError("all battles are judged")
    said = answers.battles
    battles = [
        Battle(questions.battles[place], said[side][place], said["teacher"][place])
        for place in places
        for side in _SIDES
    ]
    rows = [one.row() for one in judge.judge(battles)]
    return [dict(zip(_SIDES, rows[start : start + 2], strict=True)) for start in range(0, len(rows), 2)]


def _with_judge(m: Measuring, work: Callable[[Judge], T]) -> T:
    settings, wanted = m.job.settings, m.job.spec.evaluation
    if wanted.judge == "likelihood":
        tokenizer = models.tokenizer(m.where("reference"))
        if not tokenizer.chat_template:
            raise Refused(
                "JUDGE_UNAVAILABLE",
                "evaluation.judge_model has no chat template: begin a new job with a chat model as judge",
            )
        ends = models.ends(m.where("reference"), tokenizer)
        return m.using("reference", lambda model: work(LikelihoodJudge(model, tokenizer, ends)), dtype(m.job))
    if settings.router is None:
        raise Refused("JUDGE_UNAVAILABLE", "the service knows no router: set distiller.router, then resume the job")

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        m.job.stop.check()

    with SyncClient(settings.router) as client:
        return work(RouterJudge(client, wanted.judge_model, pause))


def _described(m: Measuring) -> str:
    wanted = m.job.spec.evaluation
    if wanted.judge == "router":
        return f"{wanted.judge_model} behind the router, asked twice with the answers' places swapped"
    return (
        f"mean log-likelihood of a token of the answer under {wanted.judge_model or 'the teacher'}, a tie within"
        f" {MARGIN_NATS} nats; a model likes its own words best, so that a third one is the fairer judge"
    )
