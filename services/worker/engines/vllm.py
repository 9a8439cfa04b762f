"""The `vllm` engine: vLLM in this process, where it is installed (a CUDA machine); vLLM batches and caches by itself.

Text is made of the tokens here, and stop strings are found here: vLLM looks for them only in what it has generated itself,
and an answer that it takes over may have the beginning of one already. Its draws are not keyed by position: a sampled answer
that it takes over goes on otherwise than undisturbed, with the same seed too.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from vllm import SamplingParams, TokensPrompt
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import EngineFailed, InvalidRequest
from services.common.sources import locate
from services.worker.engine import End, EngineRequest, Gauges, Piece, Reason, TokenLogprob
from services.worker.resume import answer_limit, catch_up, needed_ids
from services.worker.text import AnswerText, refuse_hopeless

log = structlog.get_logger()


class VllmEngine:
    """One AsyncLLM a model; each takes the GPU memory that its share allows, so load one unless they are small."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._engines: dict[str, AsyncLLM] = {}
        self._contexts: dict[str, int] = {}
        self._number = itertools.count()

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        where, gguf = locate(model.source, self._settings.model_root, self._settings.allow_hub)
        if gguf:
            raise InvalidRequest("vLLM takes a safetensors directory or a hub name, not a GGUF", field="source")
        context = model.context_tokens or self._settings.context_tokens
        arguments = AsyncEngineArgs(
            model=where,
            max_model_len=context,
            max_num_seqs=self._settings.slots,
            dtype=self._settings.dtype,
            load_format="safetensors",
            trust_remote_code=False,
            enable_log_requests=False,
        )
        self._engines[model.name] = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
        self._contexts[model.name] = context
        progress(1.0)
        return context

    async def unload(self, name: str) -> None:
        await asyncio.to_thread(self._engines.pop(name).shutdown)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        engine = self._engines[request.model]
        context = self._contexts[request.model]
        refuse_hopeless(request, context)
        tokenizer = await _tokenizer(engine)
        ids = await _prompt(tokenizer, request)
        limit = answer_limit(request, len(ids), context)
        so_far = needed_ids(request, len(tokenizer))

        def decode(tokens: Sequence[int]) -> str:
            return str(tokenizer.decode(tokens, skip_special_tokens=True))

        said = AnswerText(decode, request.sampling.stop)
        made = len(so_far)
        for event in await asyncio.to_thread(catch_up, said, request, len(ids), limit, {tokenizer.eos_token_id}):
            yield event
            if isinstance(event, End):
                return
        try:
            stream = engine.generate(
                TokensPrompt(prompt_token_ids=[*ids, *so_far]),
                _parameters(request, limit - made),
                f"{request.id}-{next(self._number)}",  # vLLM wants its own ids unique
            )
            # Leaving the generator aborts the request in the engine.
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    answer = output.outputs[0]
                    tokens, cached = list(answer.token_ids), output.num_cached_tokens or 0
                    if answer.finish_reason == "stop":
                        del tokens[-1:]  # the end-of-turn token is not counted
                    logprobs = _logprobs(tokens, answer.logprobs)
                    for place, token in enumerate(tokens):
                        made += 1
                        text, stopped = said.feed(token)
                        yield Piece(text, (token,), 1, logprobs[place : place + 1])
                        if stopped:
                            yield End("stop_sequence", len(ids), made, stopped, min(cached, len(ids)))
                            return
                    if output.finished:
                        if held := said.flush():
                            yield Piece(held, (), 0)
                        reason: Reason = "length" if answer.finish_reason == "length" else "stop"
                        yield End(reason, len(ids), made, "", min(cached, len(ids)))
        except ValueError as error:
            log.warning("request_refused", reason=str(error)[:500])
            raise InvalidRequest("vLLM does not take this request", field="sampling") from error
        except RuntimeError as error:
            log.error("engine_broke", reason=str(error)[:500])
            raise EngineFailed("the engine failed on this request") from error

    def gauges(self) -> Gauges:
        return Gauges()

    async def close(self) -> None:
        for name in list(self._engines):
            await self.unload(name)


async def _tokenizer(engine: AsyncLLM) -> Any:
    tokenizer: Any = engine.get_tokenizer()
    return await tokenizer if asyncio.iscoroutine(tokenizer) else tokenizer  # so in older versions


async def _prompt(tokenizer: Any, request: EngineRequest) -> list[int]:
    if not request.messages:
        return list((await asyncio.to_thread(tokenizer, request.prompt))["input_ids"])
    turns = [{"role": m.role, "content": m.content} for m in request.messages]
    try:
        made = await asyncio.to_thread(
            tokenizer.apply_chat_template, turns, add_generation_prompt=True, return_dict=True
        )
    except Exception as error:  # a chat template may fail in any way
        raise InvalidRequest("the model's chat template does not take these messages", field="messages") from error
    return list(made["input_ids"])


def _parameters(request: EngineRequest, max_tokens: int) -> SamplingParams:
    asked = request.sampling
    return SamplingParams(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k or -1,
        max_tokens=max_tokens,
        seed=asked.seed,
        logprobs=asked.logprobs,
        detokenize=asked.logprobs is not None,  # for the names of tokens
        output_kind=RequestOutputKind.DELTA,
    )


def _logprobs(tokens: list[int], given: Any) -> tuple[TokenLogprob, ...]:
    if not given:
        return ()
    named = []
    for token, rivals in zip(tokens, given, strict=False):
        ranked = sorted(rivals.items(), key=lambda item: item[1].rank)
        top = tuple(TokenLogprob(i, one.decoded_token or "", one.logprob) for i, one in ranked)
        own = rivals[token]
        named.append(TokenLogprob(token, own.decoded_token or "", own.logprob, top))
    return tuple(named)
