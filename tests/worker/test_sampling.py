"""Drawing a token from logits."""

from __future__ import annotations

import torch

from services.worker.engine import Sampling
from services.worker.engines.sampling import choose


def test_a_draw_follows_the_probabilities_and_keeps_to_top_k_and_top_p() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    drawn = [choose(logits, Sampling(temperature=1.0), 5, position)[0] for position in range(4000)]
    expected = logits.softmax(-1)
    for token in range(4):
        assert abs(drawn.count(token) / 4000 - float(expected[token])) < 0.03
    assert {choose(logits, Sampling(temperature=1.0, top_k=2), 5, p)[0] for p in range(500)} == {0, 1}
    assert {choose(logits, Sampling(temperature=1.0, top_p=0.6), 5, p)[0] for p in range(500)} == {0}
    assert choose(logits, Sampling(temperature=0), 5, 0)[0] == 0
