"""Agreement of two models, against sums that are written out, and against one document at a time."""

from __future__ import annotations

import math

import pytest
import torch

from services.distiller.objective.batch import Batch
from services.distiller.report.agreement import Agreement, measure
from tests.distiller.objective.tiny import model


def test_sums_are_those_of_the_formulas_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 7, 5, generator=generator)
    targets = torch.randint(5, (7,), generator=generator)
    found = Agreement()
    found.add(student[:4], teacher[:4], targets[:4])
    found.add(student[4:], teacher[4:], targets[4:])
    kl = nats = 0.0
    same = 0
    for s, t, target in zip(student.double().tolist(), teacher.double().tolist(), targets.tolist(), strict=True):
        p = [math.exp(one) / sum(map(math.exp, t)) for one in t]
        q = [math.exp(one) / sum(map(math.exp, s)) for one in s]
        kl += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        nats -= math.log(q[target])
        same += p.index(max(p)) == q.index(max(q))
    assert found.kl == pytest.approx(kl / 7, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nats / 7), rel=1e-5)
    assert found.top1 == same / 7


def test_documents_of_a_row_are_measured_as_if_alone_up_to_the_tokens_that_are_asked_for() -> None:
    teacher, student = (model(seed=seed).eval() for seed in (0, 1))
    vocabulary = teacher.config.vocab_size
    ids = torch.randint(vocabulary, (1, 12), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[*range(5), *range(7)]])
    together = measure(student, teacher, [Batch(ids, ids, positions)], vocabulary, 100)
    parts = [Batch(ids[:, a:b], ids[:, a:b], torch.arange(b - a)[None]) for a, b in ((0, 5), (5, 12))]
    apart = measure(student, teacher, parts, vocabulary, 100)
    assert together.tokens == apart.tokens == 4 + 6
    assert together.kl == pytest.approx(apart.kl, rel=1e-4)
    assert together.teacher_perplexity == pytest.approx(apart.teacher_perplexity, rel=1e-4)
    assert measure(student, teacher, parts, vocabulary, 3).tokens == 3
    assert measure(teacher, teacher, parts, vocabulary, 100).kl == pytest.approx(0, abs=1e-6)
