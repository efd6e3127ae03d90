"""The shapes a prompt or a conversation may have, and what they become: text or token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from outrider.errors import RequestError
from outrider.frontend.images.given_image import GivenImage, image_of
from outrider.frontend.read_embeds import read_embeds
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.image_span import ImageSpan

_SHAPES = (
    'give a string, a list of token ids, {"prompt": ...}, {"prompt_token_ids": [...]}, '
    '{"prompt_embeds": [tokens, hidden]} or {"prompt": ..., "multi_modal_data": {"image": ...}}'
)

# Keys of vLLM's prompts that would change an answer, or who shares it.
_NOT_READ = {
    "mm_processor_kwargs": "images are resized as the model's preprocessor_config.json says",
    "cache_salt": "give SamplingParams(cache_salt=...)",
}


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt to be tokenised; a rendered conversation brings its special tokens itself."""

    text: str
    add_special: bool = True
    answer_begin: str = ""  # the content of the message that the answer continues
    images: tuple[GivenImage, ...] = ()  # for the placeholders in the text

    @property
    def is_plain(self) -> bool:
        """Whether its tokens are all there is to know of it."""
        return not self.images


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that is tokens already."""

    token_ids: tuple[int, ...]
    embeds: tuple[EmbeddedSpan, ...] = ()  # in place of some of them
    images: tuple[ImageSpan, ...] = ()  # likewise

    @property
    def is_plain(self) -> bool:
        """Whether its tokens are all there is to know of it."""
        return not (self.embeds or self.images)


Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any] | TextPrompt | TokenPrompt


def parse_prompt(prompt: object) -> TextPrompt | TokenPrompt:
    """One prompt in any of its shapes."""
    if isinstance(prompt, TextPrompt | TokenPrompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt)
    if isinstance(prompt, Sequence):
        return TokenPrompt(_parse_tokens(prompt))
    raise RequestError(f"a prompt cannot be {type(prompt).__name__}; {_SHAPES}")


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list; a list that starts with an integer is one prompt."""
    if isinstance(prompts, str | Mapping | TextPrompt | TokenPrompt):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"a prompt cannot be {type(prompts).__name__}; {_SHAPES}")
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]  # the first element decides
    return list(prompts)  # type: ignore[arg-type]


def list_conversations(messages: Sequence[Any]) -> list[Sequence[Message]]:
    """One conversation or several, as a list."""
    if is_conversation(messages):
        return [messages]
    return list(messages)


def is_conversation(value: object) -> TypeGuard[Sequence[Message]]:
    """Whether this is one list of messages, each with a role."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return isinstance(value[0], Mapping) and "role" in value[0]


def _parse_mapping(prompt: Mapping[str, Any]) -> TextPrompt | TokenPrompt:
    for name, fix in _NOT_READ.items():
        if prompt.get(name):
            raise RequestError(f"{name} of a prompt is not read; {fix}")
    if prompt.get("multi_modal_data"):
        return _parse_images(prompt)
    if "prompt_embeds" in prompt:
        return embedded_prompt(read_embeds(prompt["prompt_embeds"]))
    if "prompt_token_ids" in prompt:
        return TokenPrompt(_parse_tokens(prompt["prompt_token_ids"]))
    if isinstance(prompt.get("prompt"), str):
        return TextPrompt(prompt["prompt"])
    raise RequestError(f"a prompt cannot have the keys {sorted(prompt)}; {_SHAPES}")


def _parse_images(prompt: Mapping[str, Any]) -> TextPrompt:
    """A text with placeholders, and one image of PIL or several, as vLLM takes them."""
    given = prompt["multi_modal_data"]
    is_text = isinstance(prompt.get("prompt"), str) and "prompt_embeds" not in prompt
    if not is_text or not isinstance(given, Mapping):
        raise RequestError(f"images belong to a prompt that is a text; {_SHAPES}")
    if other := sorted(given.keys() - {"image"}):
        raise RequestError(f"multi_modal_data may have images only, got {other[0]}; leave it out")
    images = given["image"]
    listed = images if isinstance(images, list | tuple) else [images]
    return TextPrompt(prompt["prompt"], images=tuple(image_of(each) for each in listed))


def embedded_prompt(span: EmbeddedSpan) -> TokenPrompt:
    """A prompt of embeddings alone."""
    return TokenPrompt((0,) * len(span), embeds=(span,))


def _parse_tokens(tokens: object) -> tuple[int, ...]:
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise RequestError(f"prompt_token_ids must be a list of integers, got {tokens!r}")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int):
            raise RequestError(f"prompt_token_ids must be integers, got {token!r}; {_SHAPES}")
    return tuple(tokens)
