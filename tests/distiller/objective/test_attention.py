"""Attention transfer, against loops and against the maps that transformers itself gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.distiller.objective.attention import QueriesKeys, distance, maps, same_heads
from services.distiller.objective.batch import IGNORE, documents
from services.distiller.objective.forward import see
from services.distiller.objective.kept import attention_of
from tests.distiller.objective.tiny import FAMILIES, model, packed


def dumb_maps(layer: QueriesKeys, documents: Any) -> Any:
    """[batch, heads, time, time], one query after the other."""
    batch, heads, time, _ = layer.queries.shape
    result = torch.zeros(batch, heads, time, time, dtype=torch.float64)
    for row in range(batch):
        for head in range(heads):
            group = head // (heads // layer.keys.shape[1])
            for query in range(time):
                seen = [
                    key
                    for key in range(query + 1)
                    if documents[row, key] == documents[row, query] and (not layer.window or query - key < layer.window)
                ]
                scores = [layer.queries[row, head, query] @ layer.keys[row, group, key] * layer.scaling for key in seen]
                result[row, head, query, seen] = torch.stack(scores).softmax(0).detach()
    return result


def layer(heads: int, groups: int, seed: int, window: int | None = None, time: int = 11) -> QueriesKeys:
    torch.manual_seed(seed)
    queries = torch.randn(2, heads, time, 3, dtype=torch.float64)
    return QueriesKeys(queries, torch.randn(2, groups, time, 3, dtype=torch.float64), 0.7, window)


@pytest.mark.parametrize(
    ("heads", "groups", "other_heads", "window"), [(4, 2, 4, None), (2, 1, 6, None), (6, 3, 2, 4), (3, 3, 4, None)]
)
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_the_distance_is_what_its_formula_says(
    heads: int, groups: int, other_heads: int, window: int | None, chunk: int
) -> None:
    student, teacher = layer(heads, groups, 0, window), layer(other_heads, other_heads, 1)
    batch = packed(2, 11)
    place, scored = documents(batch.position_ids), batch.targets() != IGNORE
    one, other = dumb_maps(student, place), dumb_maps(teacher, place)
    common = min(heads, other_heads) if max(heads, other_heads) % min(heads, other_heads) == 0 else 1
    expected = 0.0
    for row, query in scored.nonzero().tolist():
        few, many = (whole[row, :, query].reshape(common, -1, 11).mean(1) for whole in (one, other))
        expected += float(((few - many) ** 2).sum()) / common
    assert distance(student, teacher, place, scored, chunk=chunk).item() == pytest.approx(expected)


def test_the_distance_has_the_gradient_of_finite_differences() -> None:
    student, teacher = layer(2, 1, 0, time=7), layer(4, 2, 1, time=7)
    batch = packed(2, 7)
    place, scored = documents(batch.position_ids), batch.targets() != IGNORE

    def far(queries: Any, keys: Any) -> Any:
        return distance(QueriesKeys(queries, keys, 0.7), teacher, place, scored, chunk=2)

    assert torch.autograd.gradcheck(far, (student.queries.requires_grad_(), student.keys.requires_grad_()))


def test_heads_are_compared_by_groups_or_all_together() -> None:
    two, six, four = torch.tensor([1.0, 2.0]), torch.arange(6.0), torch.arange(4.0)
    assert [values.tolist() for values in same_heads(two, six)] == [[1, 2], [1, 4]]
    assert [values.tolist() for values in same_heads(six, two)] == [[1, 4], [1, 2]]
    assert [values.tolist() for values in same_heads(six, four)] == [[2.5], [1.5]]


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_are_those_of_eager_attention(family: str) -> None:
    fast, eager = model(family, layers=3), model(family, layers=3)
    eager.set_attn_implementation("eager")
    batch = packed(2, 17)
    seen = see(fast, batch, [0, 2], [])
    output = eager(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, output_attentions=True)
    place = documents(batch.position_ids)
    for index in (0, 2):
        for row in range(2):
            ours = maps(seen.attention[index], place, row, torch.arange(17))
            torch.testing.assert_close(ours, output.attentions[index][row], atol=1e-6, rtol=1e-6)
            assert ours.std(-1).max() > 0.1  # not flat


def test_keeping_queries_and_keys_leaves_the_model_as_it_was() -> None:
    one = model()
    batch = packed()
    before = see(one, batch, [], []).last
    config = attention_of(one, 1).config
    kept = see(one, batch, [1], [])
    torch.testing.assert_close(kept.last, before, atol=0, rtol=0)
    assert attention_of(one, 1).config is config is one.config
    assert config._attn_implementation == "sdpa"
    assert kept.attention.keys() == {1}
