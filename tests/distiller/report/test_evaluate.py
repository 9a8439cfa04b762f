"""The evaluation of whole jobs: what it leaves, and that it goes on where it was stopped."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

import pytest

from ladr.v1.distiller_pb2 import DistillPhase, DistillProgress
from services.distiller.place import DONE, FAILED, STOPPED, Place
from services.distiller.report import router as router_judge
from services.distiller.report.notes import Notes
from services.distiller.trainer import evaluate, measuring
from services.distiller.trainer.__main__ import work
from services.distiller.trainer.job import Job
from services.distiller.trainer.meter import Meter
from services.distiller.trainer.ranks import Ranks
from services.distiller.trainer.stop import Stop
from tests.client.fake_router import serving
from tests.distiller import tiny
from tests.distiller.report.test_page import Seen
from tests.distiller.report.test_router_judge import Scripted
from tests.distiller.trainer.conftest import Workshop, progress, workshop

__all__ = ["workshop"]  # a fixture
EVALUATION = {"battles": 9, "refusal_pairs": 2, "answer_tokens": 6, "tokens": 100}
QUICK = {"training": {"steps": 2, "checkpoint_steps": 2}, "data": {"holdout": 0.3}}
CLOCKED = ("speed_ratio", "speed_ratio_low", "speed_ratio_high", "tokens_per_second", "tokens_per_second_teacher")


@pytest.fixture(autouse=True)
def _rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few, for speed is not what is looked at here."""
    monkeypatch.setattr("services.distiller.report.speed.DECODED", 2)


class StopsAt(Stop):
    """Asks to stop once so many steps of the evaluation are told."""

    def __init__(self, place: Place, step: int) -> None:
        self._place, self._step = place, step

    @property
    def requested(self) -> bool:  # type: ignore[override]
        last = progress(self._place)[-1]
        return last.phase == DistillPhase.DISTILL_PHASE_EVALUATE and last.step >= self._step


def read(place: Place) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads((place.report / "report.json").read_bytes(), parse_constant=refuse)
    return found


def unclocked(report: dict[str, Any]) -> dict[str, Any]:
    figures = {name: value for name, value in report["figures"].items() if name not in CLOCKED}
    return {**report, "figures": figures, "speed": None}


def test_an_evaluation_that_is_stopped_again_and_again_gives_the_same_report_and_measures_nothing_twice(
    workshop: Workshop,
) -> None:
    whole, stopped = (workshop.job(name, evaluation=EVALUATION, **QUICK) for name in ("whole", "stopped"))
    assert workshop.run(whole) == DONE
    seen: dict[str, int] = {}
    for step in (1, 5, 11):
        assert workshop.run(stopped, StopsAt(stopped, step)) == STOPPED
        now = {file.name: file.stat().st_mtime_ns for file in stopped.report.glob("agreement-*.json")}
        assert now == {**now, **seen}
        seen = now
    assert not (stopped.report / "report.json").exists()
    answered = (stopped.report / "answers-teacher.jsonl").read_bytes()
    assert workshop.run(stopped) == DONE
    assert (stopped.report / "answers-teacher.jsonl").read_bytes() == answered
    assert unclocked(read(stopped)) == unclocked(read(whole))
    told = [one for one in progress(stopped) if one.phase == DistillPhase.DISTILL_PHASE_EVALUATE]
    assert told[-1].step == told[-1].total_steps == 2 + (3 * 2 + 2) + 2 + 6 + 1


def test_a_report_has_figures_of_every_part_and_a_page_with_the_records_as_texts(workshop: Workshop) -> None:
    hostile = "<script>alert(1)</script>"
    records = [
        {"messages": [{"role": "user", "content": f"{hostile} {number}"}, {"role": "assistant", "content": hostile}]}
        for number in range(40)
    ]
    tiny.write(workshop.root / "data" / "c.jsonl", records)
    place = workshop.job(evaluation=EVALUATION, **QUICK)
    assert workshop.run(place) == DONE
    report = read(place)
    figures = report["figures"]
    assert figures["elo_low"] <= figures["elo"] <= figures["elo_high"]
    assert figures["elo_kept"] == pytest.approx(figures["elo"] / 1000)
    assert {"elo_untrained", "win_rate", *CLOCKED} <= figures.keys()
    for kind in ("harmful", "harmless"):
        assert 0 <= figures[f"refused_{kind}"] <= 1
        assert 0 <= figures[f"refused_{kind}_teacher"] <= 1
    assert report["arena"]["battles"] == figures["battles"] == 9
    assert figures["speed_ratio_low"] <= figures["speed_ratio"] <= figures["speed_ratio_high"]
    assert len(report["refusals"]) == 2
    assert hostile in report["arena"]["examples"][0]["question"]
    page = (place.report / "report.html").read_text()
    assert hostile not in page
    assert hostile in Seen(page).text
    assert {file.stem for file in place.report.glob("*.png")} == {"losses", "agreement", "elo", "refusals", "cost"}


def test_zero_battles_and_pairs_are_none(workshop: Workshop) -> None:
    place = workshop.job(**QUICK)  # whose base asks for none
    assert workshop.run(place) == DONE
    report = read(place)
    assert (report["arena"], report["refusals"], report.get("int8")) == (None, [], None)
    assert not {name for name in report["figures"] if name.startswith(("elo", "win", "refused"))}
    assert not list(place.report.glob("answers-*"))


def test_a_teacher_that_does_not_chat_is_asked_nothing(workshop: Workshop) -> None:
    plain = tiny.tokenizer()
    plain.chat_template = None
    plain.save_pretrained(workshop.root / "models" / "tiny")
    (workshop.root / "models" / "tiny" / "chat_template.jinja").unlink()
    tiny.write(workshop.root / "data" / "c.jsonl", [{"text": f"one and {number}"} for number in range(40)])
    place = workshop.job(evaluation=EVALUATION, **QUICK)
    assert workshop.run(place) == DONE
    assert (read(place)["arena"], read(place)["refusals"]) == (None, [])


def test_a_teacher_whose_template_wants_more_than_a_question_has_battles_and_no_refusals(workshop: Workshop) -> None:
    (workshop.root / "models" / "tiny" / "chat_template.jinja").write_text(
        "{% if messages[0].role != 'system' %}{{ raise_exception('begin with a system turn') }}{% endif %}"
        + tiny.TEMPLATE
    )
    system = {"role": "system", "content": "add"}
    records = [{"messages": [system, *one["messages"]]} for one in tiny.conversations(40)]
    tiny.write(workshop.root / "data" / "c.jsonl", records)
    place = workshop.job(evaluation=EVALUATION, **QUICK)
    assert workshop.run(place) == DONE
    assert read(place)["arena"] and read(place)["refusals"] == []


def test_there_are_never_more_than_two_models(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    most, now = 0, 0
    using = measuring.Measuring.using

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return using(*arguments, **options)
        finally:
            now -= 1

    monkeypatch.setattr(measuring.Measuring, "using", counted)
    assert workshop.run(workshop.job(evaluation=EVALUATION, **QUICK)) == DONE
    assert (most, now) == (2, 0)


def test_a_model_is_gone_when_its_part_is_done(workshop: Workshop) -> None:
    place = workshop.job()
    job = Job(place, place.read_spec(), workshop.settings, Ranks(), "cpu", Stop(), Meter(None, lambda: 0))
    m = measuring.Measuring(job, Notes(place.report))
    assert m.using("teacher", weakref.ref)() is None


async def test_a_judge_that_is_away_fails_the_job_and_a_resume_keeps_what_was_measured(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_judge, "PAUSES_S", (0.0,))
    place = workshop.job(evaluation={**EVALUATION, "judge": "router", "judge_model": "judge"}, **QUICK)

    async def run(address: str | None) -> int:
        settings = workshop.settings.model_copy(update={"router": address})
        return await asyncio.to_thread(work, place, place.read_spec(), settings, Stop(), 0.0)

    def reason() -> str:
        failure = place.read_failure()
        assert failure is not None
        return failure.reason

    assert await run(None) == FAILED
    assert reason() == "JUDGE_UNAVAILABLE"
    async with serving(Scripted()) as away:
        address = away.address
    answered = {file.name: file.stat().st_mtime_ns for file in place.report.glob("agreement-*.json")}
    assert await run(address) == FAILED
    assert reason() == "JUDGE_UNAVAILABLE"
    async with serving(Scripted()) as router:
        router.says = lambda a, b: "A"
        assert await run(router.address) == DONE
        assert len(router.requests) == 9 * 2 * 2
    assert {file.name: file.stat().st_mtime_ns for file in place.report.glob("agreement-*.json")} == answered
    report = read(place)
    assert (report["arena"]["swayed"], report["figures"]["elo"]) == (18, 1000)


def test_a_long_curve_is_thinned_and_keeps_its_last_point_and_the_last_word_of_each(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "MOST_POINTS", 5)
    place = workshop.job()
    for start, steps in ((1, range(1, 9)), (2, range(5, 13))):
        for step in steps:
            losses = {"total": float(start)}
            place.add_progress(DistillProgress(phase=DistillPhase.DISTILL_PHASE_TRAIN, step=step, losses=losses))
    found = evaluate.curve(place)
    assert [(one["step"], one["losses"]["total"]) for one in found] == [(3, 1), (6, 2), (9, 2), (12, 2)]
