"""Each repair against what it promises, on tiny models with the outliers that W8A8 suffers from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, Qwen2Config

from services.common.int8.linear import W8A8Linear
from services.common.int8.notes import Step
from services.distiller.int8.known import Known
from services.distiller.int8.lora import MOST_STEPS, STEP_TOKENS, in_steps, lora
from services.distiller.int8.quantised import Quantised
from services.distiller.int8.repair import Material, Result, Told, quantise
from services.distiller.int8.sensitive import SHARE, chosen, fewest, keep_sensitive, kinds
from services.distiller.int8.smooth import largest, smoothed
from services.distiller.objective.batch import Batch
from services.distiller.report.agreement import measure
from services.distiller.spec import Int8
from tests.distiller import tiny

VOCABULARY = 256
WORSE = "model.layers.1.mlp.down_proj"


def batches(count: int, seed: int = 0) -> list[Batch]:
    """Rows of two documents, whose later halves are scored."""
    made = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(0, VOCABULARY, (2, 32), generator=made)
        labels = ids.clone()
        labels[:, :8] = labels[:, 16:24] = -100
        positions = torch.arange(16).repeat(2, 2)
        found.append(Batch(ids, labels, positions))
    return found


def model(outliers: float = 30.0, layers: int = 2) -> Any:
    """A tiny model; one channel of each norm is so many times larger, and read by weights so many times smaller: in floats it
    makes no difference."""
    made = tiny.teacher(layers=layers).eval().requires_grad_(False)
    for layer in made.model.layers:
        for norm, readers in (
            (layer.input_layernorm, (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)),
            (layer.post_attention_layernorm, (layer.mlp.gate_proj, layer.mlp.up_proj)),
        ):
            norm.weight.data[3] *= outliers
            for reader in readers:
                reader.weight.data[:, 3] /= outliers
    return made


def spoil(made: Any, by: float = 300.0) -> Any:
    """The same for one of the inputs of `WORSE`."""
    layer = made.model.layers[1].mlp
    layer.up_proj.weight.data[5] *= by
    layer.down_proj.weight.data[:, 5] /= by
    return made


def kl_of(made: Any) -> float:
    probe = Known(model(), batches(4), VOCABULARY)
    return probe.kl(Quantised(copy.deepcopy(made), "w8a8").model)


def test_what_is_known_of_a_model_gives_the_agreement_that_the_report_has() -> None:
    one, other = model(), tiny.teacher(seed=1, layers=3).eval()
    for most in (10**9, 50):
        known = Known(one, batches(3), VOCABULARY, most)
        found = known.agreement(other)
        wanted = measure(other, one, batches(3), VOCABULARY, most)
        assert found.tokens == wanted.tokens == known.tokens
        assert found.kl == pytest.approx(wanted.kl)
        assert (found.top1, found.perplexity) == pytest.approx((wanted.top1, wanted.perplexity))
    assert known.kl(one) == pytest.approx(0, abs=1e-6)


def test_a_quantised_model_has_any_layer_back_as_it_was() -> None:
    plain = model()
    reference = copy.deepcopy(plain)
    ids = batches(1)[0].input_ids
    quantised = Quantised(plain, "w8a8")
    assert quantised.head == "lm_head"
    assert len(quantised.names) == 2 * 7 + 1
    assert all(isinstance(plain.get_submodule(name), W8A8Linear) for name in quantised.names)
    assert plain.config.tie_word_embeddings is False
    quantised.keep(["lm_head", WORSE])
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    assert plain.config.tie_word_embeddings is True
    assert set(quantised.layers) == set(quantised.names) - {"lm_head", WORSE}
    quantised.keep(quantised.names)
    assert torch.equal(plain(ids).logits, reference(ids).logits)


def test_layers_of_sizes_that_a_gpu_cannot_multiply_are_not_quantised() -> None:
    plain = tiny.teacher(vocabulary=259).eval()
    assert Quantised(plain, "w8a8").head is None
    assert plain.config.tie_word_embeddings is True


@pytest.mark.parametrize("bias", [False, True])
def test_smoothing_changes_no_answer_and_moves_what_is_large(bias: bool) -> None:
    plain = model()
    if bias:  # Qwen2 has biases where scales are written
        torch.manual_seed(0)
        keep = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        config = Qwen2Config(**{name: getattr(plain.config, name) for name in keep}, num_hidden_layers=2)
        plain = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        for name, one in plain.named_parameters():
            if name.endswith("bias"):
                one.data.normal_()
        plain.model.layers[0].input_layernorm.weight.data[3] = 30
    before = copy.deepcopy(plain.state_dict())
    made = smoothed(plain, batches(3))
    assert all(torch.equal(one, before[name]) for name, one in plain.state_dict().items())
    for batch in batches(2, seed=5):
        one, other = plain(batch.input_ids).logits, made(batch.input_ids).logits
        assert torch.allclose(one, other, atol=1e-4 * float(one.abs().max()))
    reader = "model.layers.0.self_attn.q_proj"
    peaks = [
        largest(each, [each.get_submodule(reader)], batches(3))[id(each.get_submodule(reader))]
        for each in (plain, made)
    ]
    spread = [float(one.max() / one.median()) for one in peaks]
    assert spread[1] < 0.5 * spread[0]


def test_smoothing_repairs_what_outliers_cost() -> None:
    made = smoothed(model(), batches(3))
    assert kl_of(made) < 0.5 * kl_of(model())


def test_a_model_that_smoothing_would_change_is_left_alone() -> None:
    config = Gemma2Config(  # its norms add 1 to their weight, and stand elsewhere
        vocab_size=256,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=None,
    )
    assert smoothed(AutoModelForCausalLM.from_config(config).eval().requires_grad_(False), batches(1)) is None


def test_the_layer_that_loses_most_is_kept_and_no_more_than_are_needed() -> None:
    reference = spoil(model(outliers=1.0))
    probe = Known(reference, batches(4), VOCABULARY)
    quantised = Quantised(copy.deepcopy(reference), "w8a8")
    worst = probe.kl(quantised.model)
    quantised.keep([WORSE])
    alone = probe.kl(quantised.model)
    assert alone < 0.3 * worst
    looked: list[int] = []
    keep_sensitive(quantised, probe, probe, alone * 1.2, lambda: looked.append(1))
    assert quantised.kept == {WORSE}
    assert looked
    keep_sensitive(quantised, probe, probe, 1e-9, lambda: None)  # cannot be reached
    assert 1 < len(quantised.kept) <= SHARE * len(quantised.names)
    assert probe.kl(quantised.model) < alone


@settings(max_examples=200, deadline=None)
@given(count=st.integers(0, 60), least=st.integers(1, 70))
def test_the_fewest_are_found_as_by_trying_one_after_the_other(count: int, least: int) -> None:
    slowly = next((n for n in range(1, count + 1) if n >= least), count)
    assert fewest(count, lambda n: n >= least) == slowly


@settings(deadline=None)
@given(
    layers=st.integers(1, 6),
    worth=st.lists(st.integers(-5, 60), min_size=6, max_size=42),
    aim=st.integers(0, 400),
)
def test_kept_layers_are_kinds_that_help_and_no_layer_more_than_needed(layers: int, worth: list[int], aim: int) -> None:
    gains = {f"model.{number % layers}.kind{number // layers}": gain for number, gain in enumerate(worth)}
    room = max(1, int(SHARE * len(gains)))

    def kl(kept: Sequence[str]) -> float:
        return 401.0 - sum(gains[name] for name in kept)

    kept = chosen(list(gains), kl, lambda some: kl(some) <= aim)
    assert len(set(kept)) == len(kept) <= room
    if kept and kl(kept) <= aim:
        assert kl(kept[:-1]) > aim
    else:
        for kind in kinds(gains):
            helps = sum(gains[name] for name in kind) > 0
            assert set(kind) <= set(kept) or (
                set(kind).isdisjoint(kept) and not (helps and len(kind) <= room - len(kept))
            )


@settings(max_examples=50, deadline=None)
@given(widths=st.lists(st.integers(1, 1500), max_size=12))
def test_the_steps_of_an_epoch_have_each_batch_once_and_tokens_enough(widths: list[int]) -> None:
    made = [
        Batch(torch.zeros(1, width, dtype=torch.int64), torch.zeros(1, width), torch.zeros(1, width))
        for width in widths
    ]
    steps = list(in_steps(made))
    assert [id(batch) for step in steps for batch in step] == [id(batch) for batch in made]
    tokens = [[batch.input_ids.numel() for batch in step] for step in steps]
    assert all(sum(one) >= STEP_TOKENS for one in tokens[:-1])
    assert all(sum(one[:-1]) < STEP_TOKENS for one in tokens)


def trained(monkeypatch: pytest.MonkeyPatch) -> tuple[Quantised, Known, float, list[float]]:
    """An adapted model, what it is measured by, the KL before, and that of each step."""
    monkeypatch.setattr("services.distiller.int8.lora.STEP_TOKENS", 128)
    reference = model(outliers=60.0)
    probe = Known(reference, batches(4), VOCABULARY)
    quantised = Quantised(copy.deepcopy(reference), "w8a8")
    before = probe.kl(quantised.model)
    seen: list[float] = []
    lora(quantised, reference, batches(70, seed=1), probe, VOCABULARY, lambda kl, tokens: seen.append(kl))
    return quantised, probe, before, seen


def test_an_adapter_learns_what_quantising_took_and_is_part_of_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    quantised, probe, before, seen = trained(monkeypatch)
    assert len(seen) == MOST_STEPS
    assert probe.kl(quantised.model) < 0.97 * before
    assert all(type(quantised.model.get_submodule(name)) is W8A8Linear for name in quantised.layers)
    adapted = {name for name, one in quantised.layers.items() if one.down is not None}
    assert adapted == set(quantised.layers) - {"lm_head"}
    assert not any(one.requires_grad for one in quantised.model.parameters())


def test_a_stop_leaves_plain_layers_behind() -> None:
    reference = model()
    quantised = Quantised(copy.deepcopy(reference), "w8a8")

    def stop(kl: float, tokens: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        lora(quantised, reference, batches(1), Known(reference, batches(1), 256), 256, stop)
    assert all(type(quantised.model.get_submodule(name)) is W8A8Linear for name in quantised.layers)


def repaired(reference: Any, **spec: Any) -> Result:
    material = Material(batches(3), batches(16, seed=1), batches(4, seed=99))
    return quantise(reference, "w8a8", Int8(kind="w8a8", **spec), material, VOCABULARY, 10**6, Told())


def names(steps: Sequence[Step]) -> list[str]:
    return [one.step for one in steps]


def test_a_model_under_the_threshold_is_not_repaired() -> None:
    assert names(repaired(model(outliers=1.0), threshold=50.0).steps) == ["quantised"]


def test_repairs_come_in_their_order_and_end_at_the_goal() -> None:
    every = repaired(spoil(model()), threshold=1e-8, goal=1e-8, repairs=("lora", "smooth", "keep_sensitive"))
    assert names(every.steps) == ["quantised", "smooth", "keep_sensitive", "lora"]
    kls = [one.kl for one in every.steps]
    assert kls[-1] < 0.5 * kls[0]
    assert every.measured.kl(every.quantised.model) == pytest.approx(kls[-1])
    near = kls[1] * 1.01
    first = repaired(spoil(model()), threshold=near, goal=near, repairs=("smooth", "keep_sensitive", "lora"))
    assert names(first.steps) == ["quantised", "smooth"]


def test_a_repair_that_does_not_help_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(plain: Any, seen: Any) -> Any:
        made = copy.deepcopy(plain)
        made.model.norm.weight.data *= 3
        return made

    monkeypatch.setattr("services.distiller.int8.repair.smoothed", worse)
    found = repaired(model(), threshold=1e-8, goal=1e-8, repairs=("smooth",))
    assert found.steps[1].kl == found.steps[0].kl
    assert found.steps[1].said.startswith("taken back")


def test_only_linear_layers_of_the_plain_kind_are_taken() -> None:
    class Other(nn.Linear):
        pass

    plain = model()
    plain.model.layers[0].mlp.up_proj = Other(16, 32)
    assert "model.layers.0.mlp.up_proj" not in Quantised(plain, "w8a8").names
