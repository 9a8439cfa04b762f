"""Drawing the next token from a model's logits."""

from __future__ import annotations

import torch

from services.worker.engine import Sampling, TokenLogprob

_MIX = 0x9E3779B97F4A7C15  # odd, so that seeds and positions do not run into each other


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
