"""Continuous batching over a key-value cache of fixed places, for any causal model of transformers, with a draft or without.

A draft model proposes tokens and the model checks them in one pass. Each token is drawn from the model's own logits, by the
same draw as without a draft, and a proposal counts where it is that token: so the answer is the same, sampled ones too, as far
as the arithmetic of one pass over several tokens is that of several passes (fp32 is, in all that was seen; bf16 is not). The
draft draws with the same noise, which is what makes it meet the model's sampled choice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from services.worker.engine import Sampling, TokenLogprob
from services.worker.engines.cache import Reader
from services.worker.engines.drafting import Governor
from services.worker.engines.sampling import choose

# Prompt tokens a step: bounds how long a cancellation, or another answer's next token, waits.
PREFILL_TOKENS = {"cpu": 128, "cuda": 2048}


@dataclass(eq=False)
class Sequence:
    """One request in the batch. `tokens` is prompt and answer; the last of them is not in the cache yet."""

    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    limit: int  # most tokens, prompt included
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        given = self.sampling.seed
        self.seed = random.getrandbits(63) if given is None else given  # a sampler's seed, no secret


@dataclass(frozen=True)
class Step:
    """A token that a step gave to a sequence, as its `length`th; None: the model's logits are not finite, there is none."""

    sequence: Sequence
    token: int | None
    logprob: TokenLogprob | None
    length: int


@dataclass
class Draft:
    """A draft model and what came of it.

    Attributes: tokens: how many it proposes in a round. drafted, accepted: tokens since the start.
    """

    reader: Reader
    tokens: int
    governor: Governor = field(default_factory=Governor)
    drafted: int = 0
    accepted: int = 0


class Batch:
    """The running sequences of one model. Not thread-safe: one thread calls it.

    Seeded sampling is keyed by (seed, position): the same request gives the same answer in any company, as far as the
    arithmetic of the model does (fp32 does on CPU).
    """

    def __init__(
        self,
        reader: Reader,
        slots: int,
        context: int,
        draft: Draft | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._reader = reader
        self._rows: list[Sequence] = []
        self._clock = clock
        self.draft = draft
        self.slots = slots
        self.context = context
        self.prefill_tokens = PREFILL_TOKENS.get(reader.device.type, PREFILL_TOKENS["cpu"])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache."""
        return sum(self._reader.done)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises: RuntimeError: there is no free slot."""
        if len(self._rows) >= self.slots:
            raise RuntimeError("the batch is full")
        self._rows.append(sequence)
        for reader in self._readers():
            reader.add()

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; the last row takes its place."""
        row = self._rows.index(sequence)
        for reader in self._readers():
            reader.remove(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def step(self) -> list[Step]:
        """One pass over prompts that wait, if any do, and one token or more for each sequence that has read its prompt."""
        self._prefill(self._reader, self._unread(self._reader))
        ready = [row for row, unread in enumerate(self._unread(self._reader)) if not unread]
        if not ready:
            return []
        draft, reading_s = self.draft, 0.0
        if draft and draft.governor.wants(len(ready)):
            # Of those alone that have their first token, which did not wait for the draft to read the prompt.
            begun = [len(s.tokens) > s.prompt_length for s in self._rows]
            behind = [max(n - 1, 0) * b for n, b in zip(self._unread(draft.reader), begun, strict=True)]
            began_s = self._clock()
            self._prefill(draft.reader, behind)
            reading_s = self._clock() - began_s
            drafting = [row for row in ready if begun[row] and self._unread(draft.reader)[row] <= 1]
        else:
            drafting = []
        began_s = self._clock()
        proposed = self._propose(draft, drafting) if draft and drafting else {}
        steps = self._decode(ready, proposed)
        if draft:
            draft.governor.took(len(ready), len(steps), self._clock() - began_s, bool(proposed), reading_s)
        return steps

    def _readers(self) -> list[Reader]:
        return [self._reader, self.draft.reader] if self.draft else [self._reader]

    def _unread(self, reader: Reader) -> list[int]:
        """Tokens of each row before its last that are not in that cache yet."""
        return [len(s.tokens) - 1 - done for s, done in zip(self._rows, reader.done, strict=True)]

    def _prefill(self, reader: Reader, unread: list[int]) -> None:
        """Read on in the first rows that have unread tokens, side by side, up to `prefill_tokens` tokens together."""
        begin = next((row for row, count in enumerate(unread) if count), None)
        if begin is None:
            return
        length, end = 0, begin
        while end < len(unread) and unread[end]:
            longest = max(length, min(unread[end], self.prefill_tokens))
            if longest * (end + 1 - begin) > self.prefill_tokens and end > begin:
                break
            length, end = longest, end + 1
        done = reader.done[begin:end]
        # A shorter prompt is filled up with zeros. They go where its next tokens will be, which write them over.
        parts = [
            s.tokens[at : at + min(count, length)]
            for s, at, count in zip(self._rows[begin:end], done, unread[begin:end], strict=True)
        ]
        reader.read(slice(begin, end), [part + [0] * (length - len(part)) for part in parts], done)
        for row, part in enumerate(parts, start=begin):
            reader.done[row] += len(part)

    def _propose(self, draft: Draft, drafting: list[int]) -> dict[int, list[int]]:
        """The draft's next tokens of those rows. Its cache may lack the token before a row's last: it reads both."""
        reader, count = draft.reader, max(drafting) + 1
        proposed: dict[int, list[int]] = {row: [] for row in drafting}
        for turn in range(draft.tokens):
            starts = list(reader.done[:count])
            tokens = [[0] * (1 if turn else 2)] * count
            for row, made in proposed.items():
                own = self._rows[row].tokens
                tokens[row] = made[-1:] if turn else own[-2:]
                starts[row] = len(own) + turn - 1 if turn else len(own) - 2
            logits = reader.read(slice(0, count), tokens, starts)
            for row, made in proposed.items():
                sequence = self._rows[row]
                made.append(_draw(logits[row, -1], sequence, len(sequence.tokens) + turn)[0])
        return proposed

    def _decode(self, ready: list[int], proposed: dict[int, list[int]]) -> list[Step]:
        """One pass of the model over the last token of each ready row and what is proposed for it.

        Rows in between that still read take part for nothing, which costs less than a second pass.
        """
        reader, count = self._reader, max(ready) + 1
        extra = max((len(made) for made in proposed.values()), default=0)
        tokens = [[self._rows[row].tokens[reader.done[row]], *proposed.get(row, [0] * extra)] for row in range(count)]
        logits = reader.read(slice(0, count), tokens, reader.done[:count], keep=extra + 1)
        finite = logits.amax(-1).isfinite().tolist()  # NaN is the largest where there is one; −inf alone is no rival
        return [step for row in ready for step in self._take(row, logits[row], finite[row], proposed.get(row, []))]

    def _take(self, row: int, logits: torch.Tensor, finite: list[bool], proposed: list[int]) -> list[Step]:
        """Draw a row's next tokens from logits [1 + proposed…, vocabulary], for as long as the proposals are what is drawn.

        Of logits that are not finite none is drawn, and what is in the row's cache is wiped out: a later row of that place
        would multiply it by 0, which stays NaN.
        """
        sequence = self._rows[row]
        before = len(sequence.tokens)
        steps: list[Step] = []
        for place in range(len(proposed) + 1):
            if not finite[place]:
                steps.append(Step(sequence, None, None, len(sequence.tokens)))
                for reader in self._readers():
                    reader.wipe(row)
                break
            token, logprob = _draw(logits[place], sequence, len(sequence.tokens))
            sequence.tokens.append(token)
            steps.append(Step(sequence, token, logprob, len(sequence.tokens)))
            met = place < len(proposed) and token == proposed[place]
            if not met or len(sequence.tokens) >= sequence.limit:
                break
        self._reader.done[row] = len(sequence.tokens) - 1
        if proposed and self.draft:
            accepted = sum(s.token == p for s, p in zip(steps, proposed, strict=False))
            self.draft.drafted += len(proposed)
            self.draft.accepted += accepted
            self.draft.reader.done[row] = before + min(accepted, len(proposed) - 1)
        return steps


def _draw(logits: torch.Tensor, sequence: Sequence, position: int) -> tuple[int, TokenLogprob | None]:
    return choose(logits, sequence.sampling, sequence.seed, position)
