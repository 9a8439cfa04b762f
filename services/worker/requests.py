"""From a GenerateRequest to what the engine is asked: every field checked, every default filled in."""

from __future__ import annotations

from ladr.errors import InvalidRequest
from ladr.request import check_ids
from ladr.v1 import generation_pb2
from services.worker.engine import Continuation, EngineRequest, Message, Sampling

ROLES = ("system", "user", "assistant", "tool")
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_LOGPROBS = 20
MAX_TOP_K = 1000


def engine_request(request: generation_pb2.GenerateRequest, model: str) -> EngineRequest:
    """Translate a request for `model` (a name that the worker serves).

    Raises: InvalidRequest: `field` names what is wrong.
    """
    check_ids(request)
    messages = tuple(Message(_role(m.role, i), m.content) for i, m in enumerate(request.messages))
    if messages and request.prompt:
        raise InvalidRequest("give either prompt or messages, not both", field="prompt")
    if not messages and not request.prompt:
        raise InvalidRequest("give a prompt or messages", field="prompt")
    if messages and request.raw:
        raise InvalidRequest("raw takes a prompt, not messages", field="raw")
    sampling = _sampling(request.sampling)
    return EngineRequest(
        id=request.request_id,
        model=model,
        sampling=sampling,
        messages=() if request.raw else messages or (Message("user", request.prompt),),
        prompt=request.prompt if request.raw else "",
        continuation=_continuation(request.continuation, sampling.max_tokens),
    )


def _continuation(given: generation_pb2.Continuation, max_tokens: int) -> Continuation | None:
    """The answer so far; None where there is not one token of it."""
    if len(given.token_ids) not in (0, given.token_count):
        raise InvalidRequest("give the ids of all tokens so far, or none", field="continuation.token_ids")
    if given.token_count > max_tokens:
        raise InvalidRequest("the answer so far has more than max_tokens", field="continuation.token_count")
    if given.token_count:
        return Continuation(tuple(given.token_ids), given.token_count, given.text)
    if given.text:
        raise InvalidRequest("text without tokens", field="continuation.text")
    return None


def _role(role: str, index: int) -> str:
    if role not in ROLES:
        raise InvalidRequest(f"role must be one of {', '.join(ROLES)}", field=f"messages[{index}].role")
    return role


def _sampling(given: generation_pb2.Sampling) -> Sampling:
    defaults = Sampling()
    temperature = given.temperature if given.HasField("temperature") else defaults.temperature
    if not 0 <= temperature <= 2:  # also refuses NaN
        raise InvalidRequest("temperature must be 0 to 2", field="sampling.temperature")
    top_p = given.top_p if given.HasField("top_p") else defaults.top_p
    if not 0 < top_p <= 1:
        raise InvalidRequest("top_p must be over 0 and at most 1", field="sampling.top_p")
    if given.HasField("top_k") and not 1 <= given.top_k <= MAX_TOP_K:
        raise InvalidRequest(f"top_k must be 1 to {MAX_TOP_K}; leave it out for none", field="sampling.top_k")
    if given.HasField("max_tokens") and given.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", field="sampling.max_tokens")
    if given.HasField("logprobs") and given.logprobs > MAX_LOGPROBS:
        raise InvalidRequest(f"logprobs must be 0 to {MAX_LOGPROBS}", field="sampling.logprobs")
    if len(given.stop) > MAX_STOPS:
        raise InvalidRequest(f"give at most {MAX_STOPS} stop strings", field="sampling.stop")
    for index, stop in enumerate(given.stop):
        if not 1 <= len(stop.encode()) <= MAX_STOP_BYTES:
            raise InvalidRequest(f"a stop string has 1 to {MAX_STOP_BYTES} bytes", field=f"sampling.stop[{index}]")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=given.top_k,
        max_tokens=given.max_tokens if given.HasField("max_tokens") else defaults.max_tokens,
        stop=tuple(given.stop),
        seed=given.seed if given.HasField("seed") else None,
        logprobs=given.logprobs if given.HasField("logprobs") else None,
    )
