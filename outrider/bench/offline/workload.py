"""The work of every engine: prompts of equal length, answers of equal length."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.offline.offline_args import Lengths
from outrider.bench.texts import read_texts
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.chat_template import NoChatTemplate
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from outrider.models.target import TargetConfig, read_target

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """As many prompts as the largest batch; smaller batches take the first ones."""

    prompts: tuple[tuple[int, ...], ...]
    lengths: Lengths
    origin: str  # where the prompts came from, for the reader


def random_workload(folder: Path, lengths: Lengths, *, num_prompts: int) -> Workload:
    """Prompts of random ids, the same ones at every call."""
    config = read_target(folder)
    _check_context(config, lengths)
    draw = random.Random(_SEED)
    prompts = tuple(
        tuple(draw.randrange(config.vocab_size) for _ in range(lengths.prompt))
        for _ in range(num_prompts)
    )
    return Workload(prompts=prompts, lengths=lengths, origin=f"random ids, seed {_SEED}")


def file_workload(folder: Path, lengths: Lengths, *, path: Path, num_prompts: int) -> Workload:
    """Real prompts as the chat template frames them: the ends of those that are long enough.

    The end of a prompt stays, because the answer depends on it most; the beginning is cut off.
    """
    _check_context(read_target(folder), lengths)
    tokenizer = load_tokenizer(folder)
    encoded = (encode_chat(tokenizer, text) for text in read_texts(path))
    long_enough = [tokens for tokens in encoded if len(tokens) >= lengths.prompt]
    if len(long_enough) < num_prompts:
        raise ConfigError(
            f"{path} has {len(long_enough)} prompts of {lengths.prompt} tokens or more, but a "
            f"batch needs {num_prompts}; lower --prompt-tokens or --batch"
        )
    prompts = tuple(tuple(tokens[-lengths.prompt :]) for tokens in long_enough[:num_prompts])
    return Workload(prompts=prompts, lengths=lengths, origin=str(path))


def encode_fitting(folder: Path, prompts: Iterable[str], *, answer: int) -> list[tuple[int, ...]]:
    """The prompts as the chat template frames them; those that leave room for an answer."""
    tokenizer, most = load_tokenizer(folder), read_target(folder).max_context - answer
    encoded = (tuple(encode_chat(tokenizer, text)) for text in prompts)
    fitting = [each for each in encoded if len(each) <= most]
    if not fitting:
        raise ConfigError(f"no prompt fits beside {answer} tokens; lower --max-tokens")
    return fitting


def encode_chat(tokenizer: Tokenizer | NoTokenizer, text: str) -> list[int]:
    """A user's message up to the answer, or the bare text for a model without a template."""
    template = tokenizer.chat_template
    if isinstance(template, NoChatTemplate):
        return tokenizer.encode(text, add_special=True)
    messages = [{"role": "user", "content": text}]
    rendered = template.render(messages, add_generation_prompt=True)
    return tokenizer.encode(rendered, add_special=False)


def _check_context(config: TargetConfig, lengths: Lengths) -> None:
    total = lengths.prompt + lengths.answer
    if total > config.max_context:
        raise ConfigError(
            f"{lengths.prompt} prompt tokens and {lengths.answer} new ones exceed the model's "
            f"context of {config.max_context}; lower --prompt-tokens or --max-tokens"
        )
