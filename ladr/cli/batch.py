"""Lines of OpenAI's batch files, in and out. No network here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ladr.answer import reason_name
from ladr.errors import InvalidRequest
from ladr.job_calls import job_request, state_name
from ladr.v1 import generations_pb2 as pb

_URLS = ("/v1/chat/completions", "/v1/completions")
_SAME = ("model", "temperature", "top_p", "top_k", "seed", "stop")
# What changes nothing here, if it has one of these values (None: any).
_IDLE: dict[str, tuple[Any, ...] | None] = {
    "stream": (False, None),
    "n": (1, None),
    "user": None,
    "metadata": None,
    "store": None,
    "service_tier": None,
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
}


def read_line(line: str, prefix: str = "", model: str = "") -> pb.SubmitGenerationRequest:
    """The request on a line; `prefix` goes before its custom_id, `model` is asked for where the line names none.

    Raises: InvalidRequest: it is no such line, or asks for what LADR has not.
    """
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"it is not JSON ({error})") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("body"), dict):
        raise InvalidRequest('give {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}')
    if not isinstance(entry.get("custom_id"), str) or not entry["custom_id"]:
        raise InvalidRequest("give it a custom_id, as text", field="custom_id")
    if entry.get("method", "POST") != "POST" or entry.get("url", _URLS[0]) not in _URLS:
        raise InvalidRequest(f"method must be POST, and url one of {', '.join(_URLS)}", field="url")
    body = dict(entry["body"])
    options: dict[str, Any] = {name: body.pop(name) for name in _SAME if body.get(name) is not None}
    options.setdefault("model", model)
    limits = [body.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    options["max_tokens"] = next((limit for limit in limits if limit is not None), None)
    prompt = body.pop("prompt", "")
    if prompt:
        options["raw"] = True
    if "messages" in body:
        options["messages"] = _messages(body.pop("messages"))
    for name, allowed in _IDLE.items():
        value = body.pop(name, None)
        if allowed is not None and value not in allowed:
            raise InvalidRequest(f"{name}: {value!r} is not supported", field=f"body.{name}")
    if body:
        raise InvalidRequest(f"not supported: {', '.join(sorted(body))}", field=f"body.{min(body)}")
    return job_request(prompt, request_id=prefix + entry["custom_id"], **options)


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(message, Mapping) for message in given):
        raise InvalidRequest("messages must be a list of objects", field="body.messages")
    return [{**message, "content": _text(message.get("content"))} for message in given]


def _text(content: Any) -> Any:
    """Text as it is, or the parts of it put together."""
    if not isinstance(content, list):
        return content
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        raise InvalidRequest("only parts of type text are supported", field="body.messages")
    return "".join(str(part.get("text", "")) for part in content)


def line_of(job: pb.Generation, prefix: str = "") -> dict[str, Any]:
    """A job that has ended as a line of an output file."""
    line: dict[str, Any] = {
        "id": job.request_id,
        "custom_id": job.request_id.removeprefix(prefix),
        "response": None,
        "error": None,
    }
    if job.state != pb.GENERATION_STATE_SUCCEEDED:
        message = job.error.message or f"the job is {state_name(job)}"
        line["error"] = {"code": (job.error.reason or state_name(job)).lower(), "message": message}
        return line
    usage = job.result.finished.usage
    reason = reason_name(job.result.finished)
    body = {
        "id": job.request_id,
        "object": "chat.completion",
        "created": job.finished_at.seconds,
        "model": job.result.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": job.result.text},
                "finish_reason": "length" if reason == "length" else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    line["response"] = {"status_code": 200, "request_id": job.request_id, "body": body}
    return line
