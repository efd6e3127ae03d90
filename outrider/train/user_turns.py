"""User turns that the target writes itself: it goes on where a template begins one.

A chat model has learnt what users say. Prompts of that kind are as varied as its own training,
need no licence of others, and lie where the target's answers are at home.
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

_MARK = "{{turn}}"  # stands for what the user says, and in no template
_SHORTEST = 8  # characters
_MOST_DRAWS = 20  # for every turn that is wanted: some models never end one


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSampling:
    """How turns are drawn."""

    count: int
    temperature: float
    max_tokens: int  # a turn that does not end by then is left out
    seed: int
    limit_s: float


def opening(frontend: Frontend) -> tuple[int, ...]:
    """The tokens of the chat template up to where the user speaks."""
    if isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
        raise ConfigError(
            "the model has no chat template, so it cannot write user turns; "
            "give --prompts of your own"
        )
    message = {"role": "user", "content": _MARK}
    text = frontend.render([message], add_generation_prompt=False).text
    before, mark, _ = text.partition(_MARK)
    if not mark:
        raise ConfigError(
            "the chat template does not repeat what the user says; give --prompts of your own"
        )
    return frontend.encode(TextPrompt(before, add_special=False))


def write_turns(
    frontend: Frontend,
    sampling: TurnSampling,
    path: Path,
    *,
    window: int,
    note: Callable[[int], None],
) -> int:
    """Append prompts to the file until there are enough of them; how many lie in it now."""
    lines = _lines(path)
    known = {_key(line["prompt"]) for line in lines}
    first = 1 + max((_number(line) for line in lines), default=-1)
    end_s = time.monotonic() + sampling.limit_s
    with path.open("a", encoding="utf-8") as file:
        for number, answer in _drawn(frontend, sampling, first=first, window=window):
            text = answer.text.strip()
            if _is_turn(answer) and _key(text) not in known:
                known.add(_key(text))
                line = {
                    "id": f"{SOURCE}-{sampling.seed}-{number}",
                    "source": SOURCE,
                    "prompt": text,
                }
                file.write(json.dumps(line) + "\n")
                note(len(answer.token_ids))
            if len(known) >= sampling.count or time.monotonic() > end_s:
                break
    return len(known)


def _drawn(
    frontend: Frontend, sampling: TurnSampling, *, first: int, window: int
) -> Iterator[tuple[int, CompletionOutput]]:
    """What the target wrote, whether it is a turn or not: who waits looks at the clock."""
    prompt = opening(frontend)

    def requests() -> Iterator[tuple[int, PreparedRequest]]:
        for number in range(first, first + _MOST_DRAWS * sampling.count):
            params = SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_tokens,
                seed=zlib.crc32(f"turn/{sampling.seed}/{number}".encode()),
            )
            yield number, frontend.prepare(TokenPrompt(prompt), params)

    for number, live in Feed(frontend, requests(), window=window):
        if not isinstance(live, RequestState):
            raise live
        yield number, live.output().outputs[0]


def _lines(path: Path) -> list[dict[str, str]]:
    """What earlier calls left in the file."""
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        are_turns = all(_number(line) >= 0 and _key(line["prompt"]) for line in lines)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _strange(path) from error
    if not are_turns:
        raise _strange(path)
    return lines


def _strange(path: Path) -> ConfigError:
    return ConfigError(f"{path} holds other lines than turns; use another --out")


def _number(line: dict[str, str]) -> int:
    """Which draw a line of the file was; -1 if it was none of ours."""
    source, _, number = line["id"].rpartition("-")
    return int(number) if source.startswith(f"{SOURCE}-") else -1


def _is_turn(answer: CompletionOutput) -> bool:
    """It came to its end, and says something."""
    return answer.finish_reason == "stop" and len(answer.text.strip()) >= _SHORTEST


def _key(text: str) -> str:
    """Turns that differ by case and spaces alone are one."""
    return " ".join(text.casefold().split())
