"""Continuous batching over a key-value cache of fixed places, for any causal model of transformers.

Requests sit in the first rows of the cache, each as long as it is; a row that ends is filled by the last one, so that a step
always reads one contiguous view. One thread owns all of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from services.worker.engine import Sampling, TokenLogprob

_MIX = 0x9E3779B97F4A7C15  # odd, so that seeds and positions do not run into each other
# Prompt tokens a step: bounds how long a cancellation, or another answer's next token, waits.
PREFILL_TOKENS = {"cpu": 128, "cuda": 2048}


@dataclass
class View:
    """The part of the cache that the next forward pass works on: `rows`, and the positions [rows, time] to write."""

    rows: slice = field(default_factory=lambda: slice(0, 0))
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    length: int = 0


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """Keys and values of one layer: [slots, heads, context, head size], written at each row's own position."""

    def __init__(self, view: View, slots: int, context: int) -> None:
        super().__init__()
        self._view = view
        self._slots = slots
        self._context = context

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        def like(states: torch.Tensor) -> torch.Tensor:
            _, heads, _, size = states.shape
            return states.new_zeros(self._slots, heads, self._context, size)

        self.keys, self.values = like(key_states), like(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        view = self._view
        keys, values = self.keys[view.rows], self.values[view.rows]
        row = torch.arange(keys.shape[0], device=keys.device)[:, None]
        keys[row, :, view.positions] = key_states.transpose(1, 2)
        values[row, :, view.positions] = value_states.transpose(1, 2)
        return keys[:, :, : view.length], values[:, :, : view.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._view.length, 0

    def get_seq_length(self) -> int:
        return self._view.length

    def get_max_length(self) -> int:
        return self._context

    def move(self, source: int, target: int) -> None:
        """Copy a row over another."""
        if self.is_initialized:
            self.keys[target] = self.keys[source]
            self.values[target] = self.values[source]


@dataclass(eq=False)
class Sequence:
    """One request in the batch. `tokens` is prompt and answer; `done` of them are in the cache."""

    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    limit: int  # most tokens, prompt included
    done: int = 0
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        given = self.sampling.seed
        self.seed = random.getrandbits(63) if given is None else given  # a sampler's seed, no secret

    @property
    def unread(self) -> int:
        """Tokens before the last that are not in the cache yet."""
        return len(self.tokens) - 1 - self.done

    @property
    def prefilled(self) -> bool:
        return self.unread <= 0


@dataclass(frozen=True)
class Step:
    """A token that a step gave to a sequence."""

    sequence: Sequence
    token: int
    logprob: TokenLogprob | None


class Batch:
    """The running sequences of one model. Not thread-safe: one thread calls it.

    Seeded sampling is keyed by (seed, position): the same request gives the same answer in any company, as far as the
    arithmetic of the model does (fp32 does on CPU).
    """

    def __init__(self, model: torch.nn.Module, layers: int, slots: int, context: int) -> None:
        self._model = model
        self._view = View()
        self._layers = [SlotLayer(self._view, slots, context) for _ in range(layers)]
        self._cache = Cache(layers=self._layers)
        self._rows: list[Sequence] = []
        self._device = next(model.parameters()).device
        self.slots = slots
        self.context = context
        self.prefill_tokens = PREFILL_TOKENS.get(self._device.type, PREFILL_TOKENS["cpu"])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.done for sequence in self._rows)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises: RuntimeError: there is no free slot."""
        if len(self._rows) >= self.slots:
            raise RuntimeError("the batch is full")
        self._rows.append(sequence)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; the last row takes its place."""
        row = self._rows.index(sequence)
        last = len(self._rows) - 1
        if row != last:
            for layer in self._layers:
                layer.move(last, row)
            self._rows[row] = self._rows[last]
        self._rows.pop()

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def step(self) -> list[Step]:
        """One pass over prompts that wait, if any do, and one token for each sequence that has read its prompt."""
        self._prefill()
        return self._decode()

    def _prefill(self) -> None:
        """Read on in the first prompts that wait, side by side, up to `prefill_tokens` tokens together."""
        begin = next((row for row, s in enumerate(self._rows) if not s.prefilled), None)
        if begin is None:
            return
        time, end = 0, begin
        while end < len(self._rows) and not self._rows[end].prefilled:
            longest = max(time, min(self._rows[end].unread, self.prefill_tokens))
            if longest * (end + 1 - begin) > self.prefill_tokens and end > begin:
                break
            time, end = longest, end + 1
        reading = self._rows[begin:end]
        # A shorter prompt is filled up with zeros. They go where its next tokens will be, which write them over.
        parts = [s.tokens[s.done : s.done + min(s.unread, time)] for s in reading]
        padded = [part + [0] * (time - len(part)) for part in parts]
        self._forward(slice(begin, end), padded, [s.done for s in reading])
        for sequence, part in zip(reading, parts, strict=True):
            sequence.done += len(part)

    def _decode(self) -> list[Step]:
        last = max((row for row, s in enumerate(self._rows) if s.prefilled), default=None)
        if last is None:
            return []
        # One pass whoever is ready: rows in between that still read take part for nothing, which costs less than a second pass.
        sequences = self._rows[: last + 1]
        logits = self._forward(slice(0, last + 1), [[s.tokens[s.done]] for s in sequences], [s.done for s in sequences])
        steps = []
        for sequence, row in zip(sequences, logits, strict=True):
            if not sequence.prefilled:
                continue
            sequence.done += 1
            token, logprob = choose(row, sequence.sampling, sequence.seed, len(sequence.tokens))
            sequence.tokens.append(token)
            steps.append(Step(sequence, token, logprob))
        return steps

    def _forward(self, rows: slice, tokens: Items[Items[int]], starts: Items[int]) -> torch.Tensor:
        """Logits [rows, vocabulary] of the last token of each row, as float32."""
        ids = torch.tensor(tokens, device=self._device)
        time = ids.shape[1]
        positions = torch.tensor(starts, device=self._device)[:, None] + torch.arange(time, device=self._device)
        positions.clamp_(max=self.context - 1)  # of filled-up places alone; their last one is written over too
        self._view.rows = rows
        self._view.positions = positions
        self._view.length = min(max(starts) + time, self.context)
        keys = torch.arange(self._view.length, device=self._device)
        mask = keys[None, None, None, :] <= positions[:, None, :, None]
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=self._cache, logits_to_keep=1
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


def choose(logits: torch.Tensor, sampling: Sampling, seed: int, position: int) -> tuple[int, TokenLogprob | None]:
    """The next token from logits [vocabulary], and its log-probability under the model if it was asked for.

    The draw is by Gumbel noise from a generator keyed by (seed, position).
    """
    if sampling.temperature == 0:
        token = int(logits.argmax())
    else:
        kept = _truncated(logits / sampling.temperature, sampling.top_k, sampling.top_p)
        generator = torch.Generator().manual_seed((seed * _MIX + position) & (2**63 - 1))
        noise = torch.rand(kept.shape, generator=generator).clamp_min(1e-20).to(kept.device)
        token = int((kept - torch.log(-torch.log(noise))).argmax())
    if sampling.logprobs is None:
        return token, None
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(sampling.logprobs) if sampling.logprobs else None
    top = (
        tuple(TokenLogprob(int(i), "", float(p)) for p, i in zip(best.values, best.indices, strict=True))
        if best is not None
        else ()
    )
    return token, TokenLogprob(token, "", float(logprobs[token]), top)


def _truncated(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """−inf for all but the top_k likeliest and the least set of mass top_p."""
    if top_k and top_k < logits.numel():
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    if top_p < 1:
        ordered, order = logits.sort(descending=True)
        mass = ordered.softmax(-1).cumsum(-1)
        out = order[mass - ordered.softmax(-1) >= top_p]
        logits = logits.index_fill(0, out, float("-inf"))
    return logits
