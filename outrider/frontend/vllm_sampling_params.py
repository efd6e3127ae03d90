"""Arguments of vLLM's `SamplingParams` that have another name here, or that change nothing."""

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import RequestError

# Values that change nothing. None and empty ones never do.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "extra_args": (),
    "flat_logprobs": (False,),
    "guided_decoding": (),
    "logits_processors": (),
    "output_kind": (0, 2),  # CUMULATIVE, FINAL_ONLY: what `generate` returns anyway
    "repetition_detection": (),
    "skip_clone": (False, True),
    "skip_reading_prefix_cache": (False,),
    "spaces_between_special_tokens": (True,),
    "thinking_token_budget": (),
    "_real_n": (),
}
_STRUCTURED = ("structured_outputs", "guided_decoding")  # the second is the name in older vLLM
_FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer, in vLLM's words. Exactly one of the fields is set."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None


class TakesVllmArguments(type):
    """Makes a class accept the arguments of vLLM's class of the same name."""

    def __call__(cls, *values: Any, **arguments: Any) -> Any:
        known = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return super().__call__(*values, **translate(arguments, known))


def translate(arguments: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The arguments in our words. Refuses a name that is unknown, or a value that has no effect."""
    ours = {name: value for name, value in arguments.items() if name in known}
    for name in arguments.keys() - ours.keys():
        value = arguments[name]
        if value is None:
            _check_known(name, known)
        elif name in _STRUCTURED:
            if ours.get("structured") is not None:
                raise RequestError(f"structured and {name} are the same; give one of them")
            ours["structured"] = _form(name, value)
        elif not _is_neutral(name, value, known):
            raise RequestError(f"{name}={value!r} is not supported here; leave it out")
    return ours


def _is_neutral(name: str, value: object, known: Collection[str]) -> bool:
    _check_known(name, known)
    is_empty = isinstance(value, list | tuple | dict) and not value
    plain = int(value) if isinstance(value, int) else value  # also an enum's
    return is_empty or plain in _NEUTRAL[name]


def _check_known(name: str, known: Collection[str]) -> None:
    if name in _NEUTRAL or name in _STRUCTURED:
        return
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}?" if near else f"use {', '.join(sorted(known))}"
    raise RequestError(f"SamplingParams has no argument {name!r}; {guess}")


def _form(name: str, value: object) -> object:
    """The value of `structured`: a dict or a string as it is, an object of vLLM as a dict."""
    if isinstance(value, str | Mapping):
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise RequestError(f"{name} must be a StructuredOutputsParams or a dict, got {value!r}")
    given = dataclasses.asdict(value)
    return {form: given[form] for form in _FORMS if given.get(form) is not None}
