"""What `content: null` of a message becomes: empty text, or none for some templates."""

from collections.abc import Callable
from typing import Any

_NAME = "outrider_probe"
# Mistral's templates want ids of nine characters.
_CALL = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": {}}}

Render = Callable[[list[dict[str, Any]]], str]


def null_content(render: Render) -> str | None:
    """The content that makes a template write the calls of a message; empty text if both do.

    Most templates add the content to other texts, which fails with none. Templates of DeepSeek-V3
    and R1 write calls only if the content is none.
    """
    return None if not _writes_call(render, "") and _writes_call(render, None) else ""


def _writes_call(render: Render, content: str | None) -> bool:
    calling = {"role": "assistant", "content": content, "tool_calls": [_CALL]}
    try:
        return _NAME in render([{"role": "user", "content": "?"}, calling])
    except Exception:  # a template may raise anything
        return False
