"""One line of a JSON Lines file: a conversation or a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Broken(ValueError):
    """The line is no record; says why, in words that follow "line 7: "."""


@dataclass(frozen=True)
class Record:
    """Either `messages` (and the `tools` that they may call), or `text`."""

    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    text: str = ""


def read(line: bytes) -> Record:
    """The record of a line.

    Raises: Broken: it is not JSON, has neither "messages" nor "text", or a message without its role or content.
    """
    value = parsed(line)
    if not isinstance(value, dict) or ("messages" in value) == ("text" in value):
        raise Broken('it needs one of the keys "messages" and "text"')
    if "text" in value:
        if not isinstance(value["text"], str):
            raise Broken('"text" is not a string')
        return Record(text=value["text"])
    messages, tools = value["messages"], value.get("tools") or []
    if not isinstance(messages, list) or not isinstance(tools, list):
        raise Broken('"messages" and "tools" are lists')
    for message in messages:
        _check(message)
    if not all(isinstance(tool, dict) for tool in tools):
        raise Broken('each of "tools" is a mapping')
    return Record(messages=tuple(messages), tools=tuple(tools))


def parsed(line: bytes) -> Any:
    """The JSON value of a line. Raises: Broken: it is none, or its text has halves of characters (\\ud800)."""
    try:
        value = json.loads(line)
        if b"\\ud" in line.lower() or b"\xed" in line:  # how such a half is written, and characters that are whole
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Broken("it has half a character (a surrogate) in its text") from None
    except (ValueError, RecursionError):
        raise Broken("it is not JSON") from None
    return value


def _check(message: Any) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise Broken(f"a message needs a role: {', '.join(sorted(ROLES))}")
    calls = role == "assistant" and message.get("tool_calls")
    if not isinstance(message.get("content"), str) and not calls:
        raise Broken("a message needs its content as a string")
