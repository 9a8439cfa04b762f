"""Learning rate, progress, checkpoints, stored logits and sampled answers, each alone."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.config_distiller import DistillerSettings
from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.encode import MASKED, Document
from services.distiller.data.packing import Piece, pack
from services.distiller.place import Place
from services.distiller.spec import Training
from services.distiller.trainer import checkpoint, models, on_policy, shelf
from services.distiller.trainer.checkpoint import Progress
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.meter import Meter
from services.distiller.trainer.ranks import Ranks
from services.distiller.trainer.schedule import FLOOR, groups, learning_rate
from services.distiller.trainer.shelf import Shelf
from services.distiller.trainer.stop import Stop, Stopped
from tests.distiller import tiny


@given(steps=st.integers(1, 300), warmup=st.one_of(st.none(), st.integers(0, 400)))
def test_the_learning_rate_rises_to_the_highest_and_falls_to_a_tenth(steps: int, warmup: int | None) -> None:
    training = Training(steps=steps, warmup_steps=warmup, learning_rate=0.5)
    rates = [learning_rate(step, training) for step in range(steps)]
    top = steps // 20 if warmup is None else warmup
    assert all(0 < rate <= 0.5 for rate in rates)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if top < steps:
        assert rates[top] == pytest.approx(0.5)
    if top + 1 < steps:
        assert rates[-1] == pytest.approx(FLOOR * 0.5)


def test_only_matrices_decay() -> None:
    model = torch.nn.Linear(2, 3)
    matrices, others = groups(model.parameters(), 0.1)
    assert matrices == {"params": [model.weight], "weight_decay": 0.1}
    assert others == {"params": [model.bias], "weight_decay": 0.0}


def test_progress_is_written_about_once_a_second_with_means_since_the_last(tmp_path: Path) -> None:
    now = 0.0
    place = Place(tmp_path)
    meter = Meter(place, lambda: 7, every_s=1.0, clock=lambda: now)
    meter.begin(DistillPhase.DISTILL_PHASE_TRAIN, 10, step=2, tokens=100)
    for step, loss in ((3, 1.0), (4, 2.0), (5, 6.0), (6, 8.0)):
        now += 0.5
        meter.step(step, 20, {"total": loss}, {"learning_rate": loss})
    now += 0.1
    meter.step(10, 20, {"total": 5.0}, {})
    lines = [one for one, _ in place.read_progress()]
    assert [(one.phase, one.step, one.tokens, dict(one.losses)) for one in lines] == [
        (1, 0, 0, {}),
        (3, 2, 100, {}),
        (3, 4, 140, {"total": 1.5}),
        (3, 6, 180, {"total": 7.0}),
        (3, 10, 200, {"total": 5.0}),
    ]
    assert lines[2].tokens_per_second == pytest.approx(40)
    assert lines[2].remaining.ToTimedelta() == timedelta(seconds=3)  # six more steps of half a second
    assert lines[2].figures == {"learning_rate": 2.0}
    assert {one.memory_bytes for one in lines} == {7}
    Meter(place, lambda: 7)
    assert [one.start for one, _ in place.read_progress()] == [1, 1, 1, 1, 1, 2]


def test_progress_of_days_is_not_a_line_each_second(tmp_path: Path) -> None:
    now = 0.0
    place = Place(tmp_path)
    meter = Meter(place, lambda: 0, every_s=1.0, clock=lambda: now)
    meter.begin(DistillPhase.DISTILL_PHASE_TRAIN, 30 * 86400)
    written: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "add_progress", lambda *_: written.append(now))
        for step in range(10 * 86400):
            now += 1.0
            meter.step(step, 1, {}, {})
    gaps = [after - before for before, after in itertools.pairwise(written)]
    assert set(gaps[:900]) == {1.0}, "at first each second"
    assert max(gaps) == 30, "and never less often than a watcher has patience for"
    assert len(written) < 35_000


def trained(seed: int) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(seed)
    parameters = {"a": torch.nn.Parameter(torch.randn(3, 2)), "b": torch.nn.Parameter(torch.randn(4))}
    optimizer = torch.optim.AdamW(parameters.values(), fused=True)
    for _ in range(3):
        sum((one**2).sum() for one in parameters.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(parameters), optimizer


def test_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    parameters, optimizer = trained(0)
    checkpoint.save(tmp_path, Progress(3, 5, {"epoch": 1}), parameters, optimizer, Ranks())
    drawn = torch.rand(3), random.random()
    others, other = trained(1)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert checkpoint.load(path, others, other) == Progress(3, 5, {"epoch": 1})
    assert torch.equal(torch.rand(3), drawn[0])
    assert random.random() == drawn[1]
    for name, parameter in parameters.items():
        assert torch.equal(others[name], parameter)
        for kind, value in optimizer.state[parameter].items():
            assert torch.equal(other.state[others[name]][kind], value)


HARM: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda content: content[:-3],
    "empty": lambda _: b"",
    "other numbers": lambda content: content[:-8] + b"\xff" * 8,
    "{}": lambda _: b"{}",
    "[]": lambda _: b"[]",
}


@pytest.mark.parametrize("file", [*checkpoint.FILES, "digests.json"])
@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_checkpoint_is_passed_over_and_the_newest_two_are_kept(tmp_path: Path, file: str, harm: str) -> None:
    parameters, optimizer = trained(0)
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, Progress(step, 0, {}), parameters, optimizer, Ranks())
    (tmp_path / "step-00000009.new").mkdir()
    assert sorted(path.name for path in tmp_path.glob("step-*[0-9]")) == ["step-00000002", "step-00000003"]
    torn = tmp_path / "step-00000003" / file
    torn.write_bytes(HARM[harm](torn.read_bytes()))
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000002"
    checkpoint.save(tmp_path, Progress(3, 0, {}), parameters, optimizer, Ranks())
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000003"


def test_a_directory_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_directory(tmp_path / "a") as new:
        (new / "x").touch()
        raise KeyError
    assert not (tmp_path / "a").exists()
    with new_directory(tmp_path / "a") as new:
        (new / "y").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["y"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_gguf_file_is_converted_once_for_all_jobs_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def convert(directory: str, name: str, to: Path) -> None:
        asked.append(name)
        (to / "config.json").write_text("{}")

    monkeypatch.setattr(models, "_convert", convert)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "a.gguf"
    file.write_bytes(b"GGUF")
    where = DistillerSettings(state=tmp_path / "state", model_root=tmp_path / "models")
    made = models.find("a.gguf", where)
    assert models.find("a.gguf", where) == made
    assert [path.name for path in Path(made).iterdir()] == ["config.json"]
    assert asked == ["a.gguf"]
    file.write_bytes(b"GGUF, another")
    assert models.find("a.gguf", where) != made
    assert len(asked) == 2


def test_sigterm_is_heard_and_acted_on_later() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = Stop()
    try:
        stop.listen()
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.check()
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=30), draw=st.randoms())
def test_stored_logits_come_back_by_document(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], draw: random.Random
) -> None:
    root = tmp_path_factory.mktemp("taught")
    known = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "SHARD_VALUES", 12)
        writer = Shelf(root)
        for number, count in enumerate(counts):
            key = (number // 3 * 7, number % 3)
            known[key] = torch.randint(9, (count, 2)), torch.rand(count, 2)
            writer.put(key, *known[key])
        writer.flush()
    assert max(path.stat().st_size for path in root.iterdir()) < 2000  # no shard grows with what there is
    reader = Shelf(root)
    assert set(reader.keys()) == known.keys()
    for key in draw.sample(sorted(known), len(known)):
        ids, values = reader.get(key)
        assert torch.equal(ids, known[key][0])
        assert torch.equal(values, known[key][1])
    with pytest.raises(KeyError):
        reader.get((1, 0))


@pytest.mark.parametrize("harm", [*HARM, "gone"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_damaged_shard_of_stored_logits_counts_as_not_there(
    tmp_path: Path, harm: str, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "SHARD_VALUES", 1)  # each document has a shard of its own
    writer, said = Shelf(tmp_path), {(number, 0): (torch.ones(4, 2), torch.rand(4, 2)) for number in range(3)}
    for key, values in said.items():
        writer.put(key, *values)
    if complete:
        writer.finish()
    assert Shelf.complete(tmp_path) is complete
    file = tmp_path / "0-00001.safetensors"
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(HARM[harm](file.read_bytes()))
    assert not Shelf.complete(tmp_path)
    again = Shelf(tmp_path)
    assert list(again.keys()) == [(0, 0), (2, 0)]
    again.put((1, 0), *said[1, 0])
    again.finish()
    assert Shelf.complete(tmp_path)
    for key, (_, values) in said.items():
        assert torch.equal(Shelf(tmp_path).get(key)[1], values)


def test_a_sampled_answer_takes_the_old_ones_room_and_ends_where_it_ends() -> None:
    student = tiny.teacher().train()
    pieces = [
        Piece((0, 0), Document((1, 2, 3, 4, 5, 6), (MASKED, MASKED, 3, 4, 5, 6))),
        Piece((1, 0), Document((7, 8, 9, 10), (MASKED, 8, MASKED, 10))),  # two answers: the last one is made anew
        Piece((2, 0), Document((11, 12), (MASKED, 12))),  # a text, which asks nothing
    ]
    sequence = pack(pieces, 14, padding=258)
    torch.manual_seed(1)
    made = on_policy.rewritten(sequence, student, range(100), 258)
    again_from = torch.manual_seed(1)
    assert on_policy.rewritten(sequence, student, range(100), 258) == made, again_from
    assert student.training
    assert (made.positions, made.slots) == (sequence.positions, sequence.slots)
    assert (made.ids[:2], made.ids[6:9], made.ids[10:12]) == ((1, 2), (7, 8, 9), (11, 12))
    assert (made.labels[6:9], made.labels[10:12]) == (sequence.labels[6:9], sequence.labels[10:12])
    for first, end in ((2, 6), (9, 10)):
        answer = [token for token in made.labels[first:end] if token != MASKED]
        assert 1 <= len(answer) <= end - first
        assert list(made.ids[first : first + len(answer)]) == answer
        assert made.ids[first + len(answer) : end] == (258,) * (end - first - len(answer))
        assert not any(token in range(100) for token in answer[:-1])
    assert made.labels[:2] == (MASKED, MASKED)
    texts = pack(pieces[2:], 4, padding=258)
    assert on_policy.rewritten(texts, student, range(100), 258) is texts


def test_about_the_share_that_is_asked_for_is_sampled() -> None:
    steps = [on_policy.drawn(step, 3, 0.25) for step in range(2000)]
    assert 400 < sum(steps) < 600
    assert not any(on_policy.drawn(step, 3, 0.0) for step in range(100))
    assert all(on_policy.drawn(step, 3, 1.0) for step in range(100))
