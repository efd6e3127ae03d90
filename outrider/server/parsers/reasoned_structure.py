"""Structured output of a model that reasons first: the form applies to the text after the tag."""

import json
from typing import Any

from outrider.frontend.structured_params import Structured, parse_structured
from outrider.server.parsers.reasoning_reader import ReasoningTags


def structure_after(structured: Structured, tags: ReasoningTags, *, is_open: bool) -> Structured:
    """Free text up to the closing tag, and then the form.

    An answer that begins outside of reasoning may have reasoning first, or begin with the form.
    """
    form = _format(structured)
    begin = "" if is_open else tags.open
    reasoning = {
        "type": "tag",
        "begin": begin,
        "content": {"type": "any_text"},
        "end": tags.close,
    }
    blanks = {"type": "regex", "pattern": "[ \\n]{0,2}"}
    reasoned = {"type": "sequence", "elements": [reasoning, blanks, form]}
    chosen = reasoned if is_open else {"type": "or", "elements": [reasoned, form]}
    return {"structural_tag": {"type": "structural_tag", "format": chosen}}


def _format(structured: Structured) -> dict[str, Any]:
    """The form as a part of a structural tag."""
    spec = parse_structured(structured)
    match spec.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(spec.text)}
        case "regex":
            return {"type": "regex", "pattern": spec.text}
        case "ebnf":
            return {"type": "grammar", "grammar": spec.text}
    tag: dict[str, Any] = json.loads(spec.text)
    return dict(tag["format"])
