"""Whether a template writes contents that are strings, or reads lists of parts alone."""

from collections.abc import Callable
from typing import Any

_TEXT = "outrider probe"

Render = Callable[[list[dict[str, Any]]], str]


def reads_parts_only(render: Render) -> bool:
    """Templates of some models with images, such as SmolVLM's, write nothing of a string."""
    return not _writes(render, _TEXT) and _writes(render, [{"type": "text", "text": _TEXT}])


def _writes(render: Render, content: object) -> bool:
    try:
        return _TEXT in render([{"role": "user", "content": content}])
    except Exception:  # a template may raise anything
        return False
