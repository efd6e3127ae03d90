"""Prompts that the target writes itself: it continues where its chat template begins a user turn.

A chat model has learnt what users write. Such prompts are as varied as the target's own training
and need no licence from others.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider.frontend.frontend import Frontend
from outrider.frontend.outputs import CompletionOutput
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate

SOURCE = "self_written"

_PLACEHOLDER = "{{turn}}"  # stands for the user turn; no template contains it
_MIN_CHARACTERS = 8
_MAX_DRAWS = 20  # per wanted turn: some models never end a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSampling:
    """How turns are sampled."""

    count: int
    temperature: float
    max_tokens: int  # a turn that has not ended by then is dropped
    seed: int
    limit_s: float


def turn_prefix(frontend: Frontend) -> tuple[int, ...]:
    """The tokens of the chat template before the text of a user turn."""
    if isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
        raise ConfigError(
            "the model has no chat template, so it cannot write user turns; "
            "give --prompts of your own"
        )
    message = {"role": "user", "content": _PLACEHOLDER}
    text = frontend.inputs.render([message], add_generation_prompt=False).text
    before, placeholder, _ = text.partition(_PLACEHOLDER)
    if not placeholder:
        raise ConfigError(
            "the chat template does not repeat what the user says; give --prompts of your own"
        )
    return frontend.inputs.encode(TextPrompt(before, add_special=False))


def write_turns(
    frontend: Frontend,
    sampling: TurnSampling,
    path: Path,
    *,
    max_in_flight: int,  # requests in the engine at the same time
    on_turn: Callable[[int], None],  # called with the tokens of each new turn
) -> int:
    """Append turns to the file until it has enough. Returns how many it has now."""
    lines = _lines(path)
    known = {_key(line["prompt"]) for line in lines}
    first = 1 + max((_number(line) for line in lines), default=-1)
    end_s = time.monotonic() + sampling.limit_s
    with path.open("a", encoding="utf-8") as file:
        for number, answer in _sampled(
            frontend, sampling, first=first, max_in_flight=max_in_flight
        ):
            text = answer.text.strip()
            if _is_turn(answer) and _key(text) not in known:
                known.add(_key(text))
                line = {
                    "id": f"{SOURCE}-{sampling.seed}-{number}",
                    "source": SOURCE,
                    "prompt": text,
                }
                file.write(json.dumps(line) + "\n")
                on_turn(len(answer.token_ids))
            if len(known) >= sampling.count or time.monotonic() > end_s:
                break
    return len(known)


def _sampled(
    frontend: Frontend, sampling: TurnSampling, *, first: int, max_in_flight: int
) -> Iterator[tuple[int, CompletionOutput]]:
    """Everything that the target wrote. Bad turns are included: the caller checks the time."""
    prompt = turn_prefix(frontend)

    def requests() -> Iterator[tuple[int, PreparedRequest]]:
        for number in range(first, first + _MAX_DRAWS * sampling.count):
            params = SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_tokens,
                seed=zlib.crc32(f"turn/{sampling.seed}/{number}".encode()),
            )
            yield number, frontend.inputs.prepare(TokenPrompt(prompt), params)

    for number, live in Feed(frontend, requests(), max_in_flight=max_in_flight):
        if not isinstance(live, RequestState):
            raise live
        yield number, live.output().outputs[0]


def _lines(path: Path) -> list[dict[str, str]]:
    """The turns that earlier calls wrote."""
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        are_turns = all(_number(line) >= 0 and _key(line["prompt"]) for line in lines)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_turns(path) from error
    if not are_turns:
        raise _not_turns(path)
    return lines


def _not_turns(path: Path) -> ConfigError:
    return ConfigError(f"{path} holds other lines than turns; use another --out")


def _number(line: dict[str, str]) -> int:
    """The number in the id of a line; -1 if we did not write the line."""
    source, _, number = line["id"].rpartition("-")
    return int(number) if source.startswith(f"{SOURCE}-") else -1


def _is_turn(answer: CompletionOutput) -> bool:
    """Whether the turn ended by itself and is not nearly empty."""
    return answer.finish_reason == "stop" and len(answer.text.strip()) >= _MIN_CHARACTERS


def _key(text: str) -> str:
    """Equal for turns that differ only in case and spaces."""
    return " ".join(text.casefold().split())
