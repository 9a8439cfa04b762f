"""A whole job, from its spec to its student; and what a job is refused for."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.corpus import scan
from services.distiller.machine import Fail
from services.distiller.outcome import outcome
from services.distiller.place import DONE, FAILED, FULL, Place
from services.distiller.trainer import checkpoint, loading, train
from services.distiller.trainer.failures import explain
from services.distiller.trainer.launch import failure_of
from tests.distiller import tiny
from tests.distiller.trainer.conftest import Workshop, curve, progress, weights
from tests.processes import ROOT


def failure(place: Place) -> tuple[str, str]:
    found = place.read_failure()
    assert found is not None
    return found.reason, found.message


def test_a_job_leaves_a_student_that_loads_and_has_learnt(workshop: Workshop) -> None:
    training = {"steps": 40, "learning_rate": 0.02, "checkpoint_steps": 100}
    place = workshop.job(student={"choice": "block_influence"}, training=training)
    assert workshop.run(place) == DONE
    student = AutoModelForCausalLM.from_pretrained(place.student, use_safetensors=True)
    assert student.config.num_hidden_layers == 2
    assert student.generation_config.eos_token_id == [256]
    assert AutoTokenizer.from_pretrained(place.student).chat_template == tiny.TEMPLATE
    last = load_file(place.checkpoints / "step-00000040" / "model.safetensors")
    for name, weight in student.named_parameters():
        assert torch.equal(weight, last[f"student.{name}"])
    losses = curve(place)
    assert losses[40]["total"] < 0.7 * losses[1]["total"]
    assert losses[1].keys() == {"total", "task", "kl", "attention"}
    assert losses[1]["total"] == pytest.approx(sum(losses[1][part] for part in ("task", "kl", "attention")))


def test_progress_says_where_the_job_is(workshop: Workshop) -> None:
    place = workshop.job()
    assert workshop.run(place) == DONE
    seen = progress(place)
    assert [DistillPhase.Name(phase)[14:] for phase in dict.fromkeys(one.phase for one in seen)] == [
        "PREPARE",
        "TRAIN",
        "SAVE",
        "EVALUATE",
    ]
    train_steps = [one for one in seen if one.phase == DistillPhase.DISTILL_PHASE_TRAIN]
    assert [one.step for one in train_steps] == list(range(13))
    assert {one.total_steps for one in train_steps} == {12}
    assert train_steps[-1].tokens > 12 * 4 * 32
    assert all(one.tokens_per_second > 0 and one.memory_bytes > 1 << 20 for one in train_steps[1:])
    assert {"learning_rate", "gradient_norm"} <= train_steps[1].figures.keys()
    assert train_steps[-1].remaining.seconds == 0


def test_the_report_shows_what_the_training_brought(workshop: Workshop) -> None:
    place = workshop.job(training={"steps": 40})
    assert workshop.run(place) == DONE
    report = json.loads((place.report / "report.json").read_bytes())
    figures = report["figures"]
    assert figures["kl"] < 0.9 * figures["kl_untrained"]
    assert figures["perplexity"] < figures["perplexity_untrained"]
    assert 0 <= figures["top1"] <= 1
    assert 0 < figures["saved_total"] < figures["saved_rest"] < 1
    assert figures["held_out_tokens"] > 0
    assert [one["step"] for one in report["curve"]] == list(range(1, 41))


def test_data_with_nothing_to_measure_on_is_refused_before_the_first_step(workshop: Workshop) -> None:
    file = workshop.root / "data" / "c.jsonl"
    unscored = {"messages": [{"role": "user", "content": "nobody answers"}]}
    tiny.write(file, [*tiny.conversations(1), unscored])
    seed = next(seed for seed in range(100) if scan(file, 0.001, seed).held_out[0] > 0)
    place = workshop.job(data={"holdout": 0.001}, training={"seed": seed})
    assert workshop.run(place) == FAILED
    assert failure(place)[0] == "NOTHING_HELD_OUT"
    assert not place.checkpoints.exists()


def test_a_finished_job_that_is_started_again_stays_as_it_is(workshop: Workshop) -> None:
    place = workshop.job()
    assert workshop.run(place) == DONE
    before = weights(place)
    assert workshop.run(place) == DONE
    assert weights(place) == before
    assert [one.step for one in progress(place) if one.start == 2 and one.losses] == []


@pytest.mark.parametrize("objective", [{}, {"hidden_weight": 0.5}, {"divergence": "jsd", "task_weight": 0.0}])
def test_micro_batches_do_not_change_the_loss(workshop: Workshop, objective: dict[str, Any]) -> None:
    curves = []
    for micro in (1, 4):
        place = workshop.job(f"{micro}", objective=objective, training={"micro_sequences": micro, "steps": 4})
        assert workshop.run(place) == DONE
        curves.append(curve(place))
    for step, losses in curves[0].items():
        assert curves[1][step] == pytest.approx(losses, abs=2e-5)


def test_bfloat16_is_near_float32_and_keeps_the_weights_in_float32(workshop: Workshop) -> None:
    wide, narrow = workshop.job("wide"), workshop.job("narrow", training={"dtype": "bfloat16"})
    assert workshop.run(wide) == workshop.run(narrow) == DONE
    for step, losses in curve(wide).items():
        assert curve(narrow)[step]["total"] == pytest.approx(losses["total"], rel=0.02)
    kept = load_file(narrow.checkpoints / "step-00000012" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert {tensor.dtype for tensor in load_file(narrow.student / "model.safetensors").values()} == {torch.bfloat16}


def test_where_the_top_k_is_stored_the_steps_need_no_teacher(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "fingerprint", lambda _: "the same")  # of files that are taken away below
    objective = {"teacher_top_k": 8, "attention_weight": 0.0}
    whole, parted = workshop.job("whole", objective=objective), workshop.job("parted", objective=objective)
    assert workshop.run(whole) == DONE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "learning_rate", no_more)
        assert workshop.run(parted) == FAILED  # when the first step began
    assert len(list(parted.taught.glob("*.safetensors"))) == 1
    for file in (workshop.root / "models" / "tiny").glob("*.safetensors"):
        file.unlink()
    assert workshop.run(parted) == FAILED  # at the report, which needs the teacher again
    assert failure(parted)[0] == "MODEL_UNREADABLE"
    assert weights(parted) == weights(whole)


def no_more(*_: Any) -> float:
    raise RuntimeError("enough")


def test_all_of_the_top_k_is_as_good_as_the_teacher(workshop: Workshop) -> None:
    live = workshop.job("live", objective={"attention_weight": 0.0})
    stored = workshop.job("stored", objective={"attention_weight": 0.0, "teacher_top_k": 263})
    assert workshop.run(live) == workshop.run(stored) == DONE
    for step, losses in curve(live).items():
        assert curve(stored)[step] == pytest.approx(losses, abs=1e-4)


def test_the_refusal_balance_is_a_part_of_the_loss(workshop: Workshop) -> None:
    place = workshop.job(objective={"refusal_weight": 1.0}, training={"steps": 2})
    assert workshop.run(place) == DONE
    assert curve(place)[1]["refusal"] > 0


def test_a_student_may_be_narrower_or_given(workshop: Workshop) -> None:
    narrow = workshop.job("narrow", student={"kind": "width"}, training={"steps": 2})
    assert workshop.run(narrow) == DONE
    assert AutoModelForCausalLM.from_pretrained(narrow.student).config.intermediate_size == 16
    tiny.save(workshop.root / "models" / "small", seed=3, layers=1, width=8)
    given = workshop.job(
        "given", student={"kind": "model", "source": "small"}, objective={"hidden_weight": 1.0}, training={"steps": 2}
    )
    assert workshop.run(given) == DONE
    assert "hidden" in curve(given)[2]


@pytest.mark.parametrize(("config", "kind"), [(Phi3Config, Phi3ForCausalLM), (GPTNeoXConfig, GPTNeoXForCausalLM)])
def test_a_teacher_that_is_built_otherwise_is_measured_too_and_quantised(
    config: Any, kind: Any, workshop: Workshop
) -> None:
    where = workshop.root / "models" / "other"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    kind(config(**sizes, vocab_size=264, max_position_embeddings=256, pad_token_id=0)).save_pretrained(where)
    tiny.tokenizer().save_pretrained(where)
    place = workshop.job(
        teacher="other",
        objective={"attention_weight": 0.0},
        training={"steps": 2},
        int8={
            "kind": "w8a8",
            "dialogues": 20,
            "threshold": 1e-9,
            "goal": 1e-9,
            "repairs": ["smooth", "keep_sensitive"],
        },
    )
    assert workshop.run(place) == DONE
    figures = json.loads((place.report / "report.json").read_bytes())["figures"]
    assert figures["saved_total"] > 0 and figures["int8_kl"] > 0


def test_weights_that_are_the_teachers_own_tie_every_battle_whatever_it_brings_for_generation(
    workshop: Workshop,
) -> None:
    own = workshop.root / "models" / "tiny" / "generation_config.json"
    own.write_text(json.dumps({"repetition_penalty": 5.0, "eos_token_id": 256}))
    place = workshop.job(
        student={"layers": 4, "choice": "every_kth"},
        training={"steps": 0},
        evaluation={"battles": 4, "answer_tokens": 8},
    )
    assert workshop.run(place) == DONE
    report = json.loads((place.report / "report.json").read_bytes())
    assert report["figures"]["top1"] == 1.0
    assert report["figures"]["win_rate"] == 0.5
    assert json.loads((place.student / "generation_config.json").read_bytes())["repetition_penalty"] == 5.0


def test_a_student_of_another_vocabulary_is_refused_before_the_first_step(workshop: Workshop) -> None:
    other = tiny.save(workshop.root / "models" / "other", vocabulary=300)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<|more|>"])
    tokenizer.save_pretrained(other)
    place = workshop.job(student={"kind": "model", "source": "other"})
    assert workshop.run(place) == FAILED
    assert failure(place)[0] == "TOKENIZER_MISMATCH"
    assert not curve(place)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"teacher": "absent"}, "NOT_FOUND"),
        ({"teacher": "../tiny"}, "INVALID_REQUEST"),
        ({"teacher": "empty"}, "MODEL_UNREADABLE"),
        ({"data": {"path": "absent.jsonl"}}, "DATA_PATH"),
        ({"data": {"path": "nothing.jsonl"}}, "DATA_EMPTY"),
        ({"data": {"path": "mute.jsonl"}}, "ALL_LABELS_MASKED"),
        ({"data": {"path": "broken.jsonl"}}, "DATA_BROKEN"),
        ({"data": {"sequence_tokens": 512}}, "CONTEXT_TOO_SHORT"),
        ({"student": {"layers": 9}}, "LAYERS_MISMATCH"),
        ({"teacher": "torn"}, "MODEL_UNREADABLE"),
        ({"teacher": "shallow"}, "MODEL_UNREADABLE"),
        ({"teacher": "headless"}, "MODEL_UNREADABLE"),
        ({"student": {"kind": "model", "source": "shallow"}}, "MODEL_UNREADABLE"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(
    workshop: Workshop, changes: dict[str, Any], reason: str
) -> None:
    data = workshop.root / "data"
    (data / "nothing.jsonl").touch()
    (data / "broken.jsonl").write_text('{"text": "a"}\n{"text"\n')
    tiny.write(data / "mute.jsonl", [{"messages": [{"role": "user", "content": f"{n}"}]} for n in range(5)])
    (workshop.root / "models" / "empty").mkdir()
    torn = tiny.save(workshop.root / "models" / "torn") / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    for name, change in (("shallow", {"num_hidden_layers": 6}), ("headless", {"num_attention_heads": 0})):
        file = tiny.save(workshop.root / "models" / name) / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    place = workshop.job(**changes)
    assert workshop.run(place) == FAILED
    assert failure(place)[0] == reason
    assert not curve(place)


def test_a_refusal_is_logged_in_a_line_and_not_as_a_fault(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    assert workshop.run(workshop.job(student={"layers": 9})) == FAILED
    (said,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert said.getMessage() == "LAYERS_MISMATCH: the teacher has 4 layers: keep at most so many, not 9."
    assert said.exc_info is None


@pytest.mark.parametrize(("weight", "warnings"), [(0.2, 1), (0.0, 0)])
def test_a_top_k_that_saves_nothing_is_warned_of(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, weight: float, warnings: int
) -> None:
    place = workshop.job(objective={"teacher_top_k": 4, "attention_weight": weight}, training={"steps": 0})
    assert workshop.run(place) == DONE
    assert caplog.text.count("teacher_top_k saves nothing") == warnings


def test_a_loss_that_is_no_number_names_its_step(workshop: Workshop) -> None:
    place = workshop.job()
    assert workshop.run(place) == DONE
    shutil.rmtree(place.student)
    shutil.rmtree(place.checkpoints / "step-00000012")
    path = place.checkpoints / "step-00000008" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4:] = b"\xff\xff\xff\xff"  # not a number
    path.write_bytes(content)
    checkpoint.seal(path.parent)
    assert workshop.run(place) == FAILED
    reason, message = failure(place)
    assert reason == "NOT_FINITE"
    assert "step 9" in message
    assert "learning_rate" in message


def test_no_more_memory_is_told_from_other_failures() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 60)
    for error in (full.value, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        reason, message = explain(error)
        assert reason == "OUT_OF_MEMORY"
        assert "micro_sequences" in message
    assert explain(KeyError("x"))[0] == "TRAINER_FAILED"


def test_a_full_disk_is_told_from_other_failures() -> None:
    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ):
        reason, message = explain(error)
        assert reason == "DISK_FULL"
        assert "resume" in message
    assert explain(FileNotFoundError(errno.ENOENT, "gone"))[0] == "TRAINER_FAILED"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_disk_so_full_that_not_even_that_can_be_written_has_a_status(workshop: Workshop, processes: int) -> None:
    place = workshop.job(teacher="absent", training={"processes": processes})
    for one in (place, *(failure_of(place, rank) for rank in range(processes))):
        one.root.mkdir(parents=True, exist_ok=True)
        one.failure.with_name("failure.json.new").symlink_to("/dev/full")
    with open("/dev/full", "w") as full:  # noqa: PTH123  # the log's disk, too
        command = workshop.command(place)
        ended = subprocess.run(command, env=workshop.environment, cwd=ROOT, stdout=full, timeout=60, check=False)
    assert ended.returncode == FULL
    event = outcome(place, ended.returncode, told=False, start=1, models=workshop.root / "models")
    assert isinstance(event, Fail)
    assert event.failure.reason == "DISK_FULL"
