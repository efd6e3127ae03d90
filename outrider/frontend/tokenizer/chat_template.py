"""Chat templates: messages to prompt text. Templates are code of the model and run in a sandbox."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from outrider.errors import ConfigError, RequestError
from outrider.frontend.tokenizer.content_form import reads_parts_only
from outrider.frontend.tokenizer.null_content import null_content
from outrider.frontend.tokenizer.template_bounds import (
    BoundedEnvironment,
    TemplateLimitError,
    bounded_rendering,
)

DEFAULT = "default"
TOOL_USE = "tool_use"  # name of the template for requests with tools, if a model has one

Message = Mapping[str, object]

_PART = re.compile("type|text")  # fields of a part
# Variables of a template that is rendered to find out what it can write.
_PROBED = {"tools": None, "documents": None, "add_generation_prompt": True}


class ContentParts(list[Mapping[str, str]]):
    """Checked parts of a message, for a template that reads them one by one."""


class ChatTemplate:
    """Owns the compiled templates of one model, by name; one of them is the default."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],  # such as {"bos_token": "<s>"}; templates spell them out
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if DEFAULT not in sources:
            raise ConfigError(
                f"the chat templates are named {', '.join(sources)}; name one of them {DEFAULT!r}"
            )
        self.source = sources[DEFAULT]
        self._special_tokens = dict(special_tokens)
        environment = _environment(now)
        self._templates = {name: _compile(environment, text) for name, text in sources.items()}
        self._null_contents: dict[str, str | None] = {}  # by template; found at its first null
        # By template; found at its first message. One that names no field of a part reads no parts.
        self._reads_parts = {
            name: False for name, text in sources.items() if not _PART.search(text)
        }

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] = (),
        **variables: object,
    ) -> str:
        """The prompt text. It holds its own special tokens: encode it with `add_special=False`."""
        name = TOOL_USE if tools and TOOL_USE in self._templates else DEFAULT
        checked = [self._in_form(name, message) for message in check_messages(messages)]
        # Templates test tools and documents for none, so both must be set.
        absent = {"tools": list(tools) or None, "documents": None}
        values = {**absent, "add_generation_prompt": add_generation_prompt, **variables}
        try:
            return self._write(name, checked, values)
        except TemplateLimitError as error:
            raise RequestError(
                f"the chat template cannot render these messages: {_one_line(error)}; send fewer "
                "or shorter messages, or fix the template in the model folder"
            ) from error
        except Exception as error:  # a template may raise anything
            raise RequestError(
                f"the chat template refused the messages: {_one_line(error)}"
            ) from error

    def _write(
        self, name: str, messages: list[dict[str, object]], values: Mapping[str, object]
    ) -> str:
        with bounded_rendering(len(messages)):
            return self._templates[name].render(
                {**self._special_tokens, **values}, messages=messages
            )

    def _in_form(self, name: str, message: dict[str, object]) -> dict[str, object]:
        """The message with a content that its template can write."""
        filled = self._fill_null(name, message)
        if not isinstance(filled["content"], str):
            return filled
        if name not in self._reads_parts:
            self._reads_parts[name] = reads_parts_only(
                lambda messages: self._write(name, messages, _PROBED)
            )
        if not self._reads_parts[name]:
            return filled
        return {**filled, "content": ContentParts([{"type": "text", "text": filled["content"]}])}

    def _fill_null(self, name: str, message: dict[str, object]) -> dict[str, object]:
        """The message without a null as its content, unless its template writes null."""
        if message["content"] is not None:
            return message
        if not message.get("tool_calls"):
            return {**message, "content": ""}
        if name not in self._null_contents:
            self._null_contents[name] = null_content(
                lambda messages: self._write(name, messages, _PROBED)
            )
        return {**message, "content": self._null_contents[name]}


class NoChatTemplate:
    """The chat template of a model that has none."""

    source = ""

    def render(
        self,
        messages: Sequence[Message],  # noqa: ARG002
        *,
        add_generation_prompt: bool,  # noqa: ARG002
        tools: Sequence[Mapping[str, object]] = (),  # noqa: ARG002
        **variables: object,  # noqa: ARG002
    ) -> str:
        raise RequestError("this model has no chat template; send a plain prompt (--raw)")


def check_messages(messages: object) -> list[dict[str, object]]:
    """The messages as templates expect them: a role, and content that is one string or None."""
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a list of at least one {role, content}")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check_message(message: object, place: str) -> dict[str, object]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{place} must be an object with a role that is a string")
    may_lack = "content" in message or message["role"] == "assistant"
    if message.get("content") is None and may_lack:
        return {**message, "content": None}
    return {**message, "content": _check_content(message.get("content"), place)}


def _check_content(content: object, place: str) -> str | ContentParts:
    if isinstance(content, str | ContentParts):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{place}.content must be a string or a list of text parts")
    return "\n".join(_check_part(part, place) for part in content)


def _check_part(part: object, place: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise RequestError(
        f'{place}.content may only hold parts like {{"type": "text", "text": "..."}}'
    )


class _Generation(Extension):
    """Renders `{% generation %}` blocks, which mark assistant text for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    environment = BoundedEnvironment(
        filters={"tojson": _to_json},
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    return environment


def _compile(environment: BoundedEnvironment, source: str) -> Template:
    try:
        return environment.from_string(source)
    except Exception as error:  # also SyntaxError and RecursionError, of code that is nested deeply
        raise ConfigError(
            f"the chat template does not compile ({_one_line(error)}); fix it in the model folder"
        ) from error


def _to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON. The filter of jinja itself would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
