"""A job whose student is wanted in 8 bits, from its spec to what workers get."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ladr.v1.distiller_pb2 import DistillPhase
from services.common.int8.form import read
from services.common.int8.notes import Notes, read_notes
from services.distiller.data.corpus import scan
from services.distiller.data.encode import Encoder
from services.distiller.data.stream import Reader
from services.distiller.int8.dialogues import PROBE_TOKENS, share_out
from services.distiller.machine import Succeed
from services.distiller.outcome import outcome
from services.distiller.place import DONE, STOPPED, Place
from services.distiller.trainer import quantize
from services.distiller.trainer.stop import Stop
from tests.distiller import tiny
from tests.distiller.trainer.conftest import Workshop, progress

REPAIRED = {"kind": "w8a8", "threshold": 1e-7, "goal": 1e-7}
"""No model of some thousand weights is so near: all repairs are made, and it may not serve."""
SHORT = {"steps": 1}


def report(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.report / "report.json").read_bytes())
    return found


def published(workshop: Workshop, place: Place) -> str:
    event = outcome(place, DONE, False, 1, workshop.settings.model_root)
    assert isinstance(event, Succeed)
    assert event.student
    return event.int8


def test_a_job_leaves_an_int8_form_that_loads_and_tells_of_each_repair(workshop: Workshop) -> None:
    place = workshop.job(training=SHORT, int8=REPAIRED)
    assert workshop.run(place) == DONE
    notes = read_notes(place.student_int8)
    assert [one.step for one in notes.steps] == ["quantised", "smooth", "keep_sensitive", "lora", "saved"]
    assert (notes.kl_before, notes.kl) == (notes.steps[0].kl, notes.steps[-1].kl)
    assert notes.kl == pytest.approx(notes.steps[-2].kl, rel=1e-4, abs=1e-9)
    assert 0 < notes.kl < notes.kl_before
    assert set(notes.layers).isdisjoint(notes.kept)
    assert len(notes.layers) + len(notes.kept) == 2 * 7 + 1
    found = report(place)
    assert [one["kl"] for one in found["int8"]["steps"]] == [one.kl for one in notes.steps]
    assert found["figures"]["int8_kl_before"] == notes.kl_before
    assert found["figures"]["int8_kl"] == notes.kl
    assert found["figures"]["int8_bytes"] == pytest.approx(notes.bytes_after / notes.bytes_before)
    model = read(place.student_int8)
    plain = AutoModelForCausalLM.from_pretrained(place.student).eval()
    ids = torch.tensor([[1, 2, 3, 50, 60]])
    with torch.no_grad():
        one, other = model(ids).logits, plain(ids).logits
    assert torch.allclose(one, other, atol=0.2 * float(other.abs().max()))
    assert AutoTokenizer.from_pretrained(place.student_int8).chat_template == tiny.TEMPLATE
    seen = [one for one in progress(place) if one.phase == DistillPhase.DISTILL_PHASE_QUANTIZE]
    assert {one.total_steps for one in seen} == {5}
    assert [one.step for one in seen] == sorted(one.step for one in seen)
    told = {int(one.figures["int8_step"]): one.figures["int8_kl"] for one in seen if one.figures}
    assert told == {number: one.kl for number, one in enumerate(notes.steps, start=1)}
    phases = list(dict.fromkeys(DistillPhase.Name(one.phase)[14:] for one in progress(place)))
    assert phases == ["PREPARE", "TRAIN", "SAVE", "QUANTIZE", "EVALUATE"]


def test_above_the_threshold_it_serves_only_if_that_was_wanted_and_is_no_teacher(workshop: Workshop) -> None:
    smooth = {**REPAIRED, "repairs": ["smooth"]}
    above = workshop.job("above", training=SHORT, int8=smooth)
    wanted = workshop.job("wanted", training=SHORT, int8={**smooth, "publish_above": True})
    assert [workshop.run(one) for one in (above, wanted)] == [DONE] * 2
    assert published(workshop, above) == ""
    assert not (workshop.settings.model_root / "students" / "above-int8").exists()
    assert "above int8.threshold" in report(above)["int8"]["why"]
    source = published(workshop, wanted)
    assert source == "students/wanted-int8"
    assert report(wanted)["int8"]["why"] == ""
    again = workshop.job("again", student={"kind": "model", "source": source})
    assert workshop.run(again) != DONE
    said = again.read_failure()
    assert said is not None
    assert "8 bits" in said.message


def test_what_is_done_is_not_done_again_and_a_stop_comes_between_the_steps(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = workshop.job(training=SHORT, int8=REPAIRED)
    stop, shares = Stop(), quantize.share_out

    def asked(*arguments: Any) -> Any:
        stop.requested = True
        return shares(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(quantize, "share_out", asked)
        assert workshop.run(place, stop) == STOPPED
    assert place.student.exists()
    assert not place.student_int8.exists()
    assert workshop.run(place) == DONE
    before = (place.student_int8 / "model-00000.safetensors").stat()
    assert workshop.run(place) == DONE
    after = (place.student_int8 / "model-00000.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_under_the_threshold_it_serves_also_without_a_step_of_training(workshop: Workshop) -> None:
    place = workshop.job(
        student={"kind": "model"},  # of no source: the teacher itself
        training={"steps": 0, "dtype": "bfloat16"},
        objective={"teacher_top_k": 4},
        int8={"kind": "weight_only", "threshold": 10.0},
    )
    assert workshop.run(place) == DONE
    phases = list(dict.fromkeys(DistillPhase.Name(one.phase)[14:] for one in progress(place)))
    assert phases == ["PREPARE", "SAVE", "QUANTIZE", "EVALUATE"]
    assert not place.checkpoints.exists()
    found = report(place)
    assert found["curve"] == []
    assert found["student"] == "the teacher itself"
    assert found["figures"]["kl"] < 0.01  # bfloat16 is all that is between them
    assert found["int8"]["kind"] == "weight_only"
    assert found["int8"]["why"] == ""
    assert [one["step"] for one in found["int8"]["steps"]] == ["quantised", "saved"]
    assert [one["bytes"] for one in found["int8"]["steps"]][1] == found["int8"]["bytes_after"]
    assert read(place.student_int8).model.embed_tokens.weight.dtype == torch.bfloat16
    assert published(workshop, place) == "students/job-int8"
    for file in place.student_int8.iterdir():
        assert (workshop.settings.model_root / "students/job-int8" / file.name).stat().st_ino == file.stat().st_ino


def test_what_is_measured_on_is_not_what_is_fitted_to(workshop: Workshop) -> None:
    file = tiny.write(workshop.root / "data" / "many.jsonl", tiny.conversations(300))
    words = tiny.tokenizer()
    reader = Reader(scan(file, 0.3, 0), Encoder(words, (256,)), 64)
    seen = {}
    for most in (1, 10, 100, 5000):
        found = share_out(reader, most, 0, 0)
        keys = [{slot[0][0] for one in part for slot in one.slots} for part in (found.probe, found.fit, found.measured)]
        assert len(keys[2]) == found.kept_apart
        assert len(keys[0] | keys[1]) == found.fitted
        assert keys[2] <= set(reader.corpus.held_out.tolist())
        assert keys[0] | keys[1] <= set(reader.corpus.train.tolist())
        assert most < 10 or keys[0].isdisjoint(keys[1]) or len(found.fit) == len(found.probe)
        assert found.fitted + found.kept_apart == max(2, min(most, 300 - max(0, len(reader.corpus.held_out) - 60)))
        seen[most] = found
    assert seen[100].kept_apart == 20
    assert sum(one.scored for one in seen[5000].probe) < PROBE_TOKENS + 64
    other, same = share_out(reader, 100, 1, 0), share_out(reader, 100, 0, 0)
    assert other.fit != seen[100].fit == same.fit
    assert other.measured != seen[100].measured == same.measured, "drawn, and not the file's first"


def test_the_notes_are_plain_json() -> None:
    notes = Notes(kind="w8a8", layers=("a",), bytes_before=4, bytes_after=1)
    assert Notes.model_validate_json(notes.model_dump_json()) == notes
    assert notes.figures() == {"int8_kl_before": 0.0, "int8_kl": 0.0, "int8_bytes": 0.25}
