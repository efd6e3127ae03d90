"""The parsed flags of `decode`, `iteration` and `prefill`. No torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.steps.body import Body, find_body
from outrider.bench.offline.offline_args import parse_dtypes
from outrider.config.draft_config import MAX_NODES
from outrider.config.engine_config import Auto, Dtype, Executor
from outrider.errors import ConfigError

SKIPPED = 12  # full steps before the clock starts: captures, caches, clock rates of the device
PROFILED = 12  # steps at most that a breakdown takes
PROMPTS_A_STEP = 8  # that the engine reads at the same time
DEFAULT_BODY = "llama-8b"
BodyQuantization = Literal["none", "fp8", "int4", "mxfp4"]  # mxfp4: of experts, else fp8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Real weights in a folder."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how an engine runs."""

    device: str  # auto, cpu, cuda, cuda:N
    dtype: Dtype
    executor: Executor | Auto
    is_deterministic: bool
    step_tokens: int  # query tokens of a step: the largest piece of a prompt
    reads_prompts: bool = True  # else their KV is noise that counts as cached
    captures_at_start: bool = False  # else a shape is captured when it first comes
    quantization: BodyQuantization = "none"  # of projections


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rows that decode together, and how long their prompts are."""

    rows: int
    prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Every case, and the number of steps that are timed in each."""

    cases: tuple[Case, ...]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What to measure besides the time of steps."""

    has_breakdown: bool
    has_cold_start: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The drafts of an iteration, and how many tokens it is made to emit."""

    steps: int
    topk: int
    nodes: int
    mean_emitted: float

    def __post_init__(self) -> None:
        sizes = {"--draft-steps": self.steps, "--topk": self.topk, "--nodes": self.nodes}
        for flag, size in sizes.items():
            most = MAX_NODES - (flag == "--draft-steps")  # the root is a node
            if not 1 <= size <= most:
                raise ConfigError(f"{flag} must be between 1 and {most}, got {size}")
        most = min(self.steps + 1, self.nodes)
        if not 1.0 <= self.mean_emitted <= most:
            raise ConfigError(
                f"--simulate-acceptance {self.mean_emitted:g} is not between 1 and {most}, the "
                f"most that {self.steps} steps and {self.nodes} nodes can emit"
            )


def check_modules(num: int, tree: Tree) -> None:
    """Refuse trees that so many modules cannot grow; none and one can grow any."""
    if num > 1 and (tree.topk != 1 or tree.steps > num):
        raise ConfigError(
            f"--modules {num}: one for each step of a chain; use --topk 1 and --draft-steps {num} "
            "or less"
        )


def parse_dtype(value: str) -> Dtype:
    """One type of weights."""
    dtypes = parse_dtypes([value])
    if len(dtypes) != 1:
        raise ConfigError(f"--dtype has {value!r}; use one type")
    return dtypes[0]


def parse_quantization(value: str) -> BodyQuantization:
    """How projections are stored."""
    for each in get_args(BodyQuantization):
        if value == each:
            chosen: BodyQuantization = each
            return chosen
    names = ", ".join(get_args(BodyQuantization))
    raise ConfigError(f"--quantization has {value!r}; use {names}")


def parse_executor(value: str) -> Executor | Auto:
    """A way to run steps, or the engine's own choice; resolving the settings checks the name."""
    executor: Executor | Auto = value  # type: ignore[assignment]
    return executor


def choose_body(name: str, model: str, *, layers: int = 0) -> tuple[Body, ...]:
    """The named body, or none where --model names real weights."""
    if (name or layers) and model:
        raise ConfigError("--body has random weights and --model real ones; give one of them")
    return () if model else (find_body(name or DEFAULT_BODY, layers=layers),)


def plan_work(
    rows: tuple[int, ...],
    *,
    prompt: int,
    context: int,
    steps: int,
    emitted: float = 1.0,
    nodes: int = 1,
) -> StepWork:
    """Every number of rows with short prompts, and, unless it is 0, ending within a context."""
    if prompt < 1:
        raise ConfigError(f"--prompt must be at least 1, got {prompt}")
    if steps < 2:
        raise ConfigError(f"--tokens must be at least 2, got {steps}")
    short = [Case(rows=each, prompt=prompt) for each in rows]
    long = [
        Case(rows=each, prompt=context - _growth(each, steps, emitted, nodes))
        for each in rows
        if context
    ]
    if any(case.prompt <= prompt for case in long):
        raise ConfigError(
            f"--context {context} is too short: {steps} timed steps and those before them leave no "
            f"prompt longer than --prompt {prompt}; raise it, or pass 0 to leave it out"
        )
    return StepWork(cases=(*short, *long), steps=steps)


def _growth(rows: int, steps: int, emitted: float, nodes: int) -> int:
    """Tokens the longest row gains until the last timed step, and what that step may write.

    The first rows decode while the prompts of the other rows are read.
    """
    rounds = -(-rows // PROMPTS_A_STEP) + SKIPPED + steps
    return math.ceil(rounds * emitted) + 4 * nodes
