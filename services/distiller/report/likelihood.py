"""The judge that needs no other service: the better answer is the one that a reference model finds likelier, by token.

It looks at each answer by itself, so no place is better than the other. It likes what it would say: with the teacher as
reference, the teacher's own greedy answer is hard to beat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.distiller.data.encode import TEMPLATE_ERRORS
from services.distiller.data.record import Record
from services.distiller.report.answers import Answer
from services.distiller.report.judge import LOST, TIED, WON, Battle, Verdict
from services.distiller.report.questions import Question, encoded

MARGIN_NATS = 0.01
"""Two answers whose means are no further apart are as good as each other."""


@dataclass(eq=False)
class LikelihoodJudge:
    """A reference model with its own tokenizer, which need not be that of the models that are compared.

    Attributes: ends: tokens that end a turn there; the likeliest of them counts where an answer ended.
    """

    model: Any
    tokenizer: Any
    ends: Sequence[int]

    def judge(self, battles: Sequence[Battle]) -> list[Verdict]:
        """A question that the reference does not take, by its chat template or its context, is a tie that is unreadable."""
        means: dict[tuple[Any, Answer], float] = {}
        for one in battles:
            for answer in (one.first, one.second):  # the teacher's is in several battles
                key = (one.question.ids, answer)
                try:
                    means[key] = means[key] if key in means else self.mean(one.question, answer)
                except TEMPLATE_ERRORS:
                    means[key] = math.nan
        return [compared(means[one.question.ids, one.first], means[one.question.ids, one.second]) for one in battles]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def mean(self, question: Question, answer: Answer) -> float:
        """Mean log-likelihood of a token of the answer, in nats; the end of its turn counts as one. Nothing said: −∞."""
        prompt = encoded(Record(question.messages, question.tools), self.tokenizer)
        said = list(self.tokenizer(answer.text, add_special_tokens=False)["input_ids"])
        if not said:
            return -math.inf
        longest = getattr(self.model.config, "max_position_embeddings", None)
        if longest and len(prompt) + len(said) + 1 > longest:
            raise ValueError("the reference does not take so long a conversation")
        ids = torch.tensor([[*prompt, *said]], device=self.model.device)
        logits = self.model(ids, use_cache=False, logits_to_keep=len(said) + 1).logits[0].float().log_softmax(-1)
        values = logits[:-1].gather(1, ids[0, len(prompt) :, None])[:, 0]
        if answer.ended and self.ends:
            values = torch.cat([values, logits[-1, list(self.ends)].max()[None]])
        return float(values.mean())


def compared(first: float, second: float) -> Verdict:
    """By means of a token, in nats; NaN: there is none."""
    if math.isnan(first) or math.isnan(second):
        return Verdict(TIED, unreadable=True)
    if first == second or abs(first - second) <= MARGIN_NATS:
        return Verdict(TIED)
    return Verdict(WON if first > second else LOST)
