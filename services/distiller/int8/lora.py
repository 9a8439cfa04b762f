"""A low-rank adapter beside each int8 layer learns what quantising took away: the KL to the unquantised model, nothing else.

PEFT makes and holds the adapters while they are trained; then each is part of its layer (`Int8Linear.adapt`). They cannot be
added to int8 weights, so they stay beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from services.distiller.int8.known import Known, states
from services.distiller.int8.quantised import Quantised
from services.distiller.objective.batch import IGNORE, Batch
from services.distiller.report.agreement import CHUNK

RANK = 16
RATE = 1.5e-4
"""Of AdamW at its highest: after WARM_UP steps; from there it falls in a line, to nothing behind the last step. What there is
to learn is small beside the noise of a step: the 135M chat model lost at 1e-3 (KL 0.0071 to 0.0083), won at this (0.0062)."""
WARM_UP = 3
STEP_TOKENS = 1024
"""Of a step, or one batch if that is more."""
MOST_STEPS = 16
CHECK_STEPS = 8
"""Steps between two looks at the probe."""
_Adapters = dict[str, tuple[Any, Any]]


def lora(
    quantised: Quantised,
    reference: Any,
    batches: Sequence[Batch],
    probe: Known,
    vocabulary: int,
    tell: Callable[[float, int], None],
) -> None:
    """Train for one epoch of `batches`, or MOST_STEPS; what did best on the probe is kept, or nothing.

    It does not end at a goal: the rate falls to the last step, and the last steps bring most.
    Args: tell: called after each step with its mean KL and its scored tokens; whatever it raises goes on.
    """
    model = quantised.model
    names = [name for name in quantised.layers if name != quantised.head]
    if not names:
        return
    from peft import LoraConfig, inject_adapter_in_model  # it takes seconds, and few jobs come this far

    best, found = probe.kl(model), None
    inject_adapter_in_model(
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names, lora_dropout=0.0, bias="none"), model
    )
    adapted = {name: model.get_submodule(name) for name in names}
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    steps = list(islice(in_steps(batches), MOST_STEPS))
    try:
        for number, some in enumerate(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (number + 1) / WARM_UP) * (1 - number / len(steps))
            loss, tokens = _step(model, reference, some, vocabulary)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tell(loss, tokens)
            if (number + 1) % CHECK_STEPS == 0 or number + 1 == len(steps):
                kl = probe.kl(model)
                if kl < best:
                    best, found = kl, _adapters(adapted)
    finally:
        for name, layer in adapted.items():
            model.set_submodule(name, layer.get_base_layer())
    for name, (down, up) in (found or {}).items():
        quantised.layers[name].adapt(down, up)


def in_steps(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """As many batches at a time as have STEP_TOKENS, padding counted; the rest is a step, too."""
    some: list[Batch] = []
    for batch in batches:
        some.append(batch)
        if sum(one.input_ids.numel() for one in some) >= STEP_TOKENS:
            yield some
            some = []
    if some:
        yield some


def _step(model: Any, reference: Any, batches: Sequence[Batch], vocabulary: int) -> tuple[float, int]:
    """The gradient of the mean KL over all scored tokens; that KL, and how many tokens."""
    total = sum(batch.scored() for batch in batches)
    summed = 0.0
    for batch in batches:
        places = (batch.targets() != IGNORE).nonzero()
        if not len(places):
            continue
        with torch.no_grad():
            known = states(reference, batch, places)
        own = states(model, batch, places)
        leaf = own.detach().requires_grad_()
        for part in _chunks(len(places)):
            with torch.no_grad():
                wanted = reference.get_output_embeddings()(known[part])[:, :vocabulary].float().log_softmax(-1)
            logits = model.get_output_embeddings()(leaf[part])[:, :vocabulary].float().log_softmax(-1)
            loss = (wanted.exp() * (wanted - logits)).sum() / total
            loss.backward()  # of the chunk, as far as the states
            summed += float(loss.detach())
        own.backward(leaf.grad)
    return summed, total


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, CHUNK):
        yield slice(start, start + CHUNK)


def _adapters(adapted: dict[str, Any]) -> _Adapters:
    """Down and up of each layer, with PEFT's scaling in the latter."""
    return {
        name: (
            layer.lora_A["default"].weight.detach().clone(),
            layer.lora_B["default"].weight.detach() * layer.scaling["default"],
        )
        for name, layer in adapted.items()
    }
