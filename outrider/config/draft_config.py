"""The drafter and the size of its trees: what the user sets, and the values that "auto" becomes."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, get_args

from outrider.config.attention_choice import AttentionName
from outrider.errors import ConfigError

AUTO: Literal["auto"] = "auto"
NONE = "none"
NGRAM = "ngram"
SUFFIX = "suffix"
MTP = "mtp"
TEXT_DRAFTERS = (NGRAM, SUFFIX)  # without a model: they look up text
HEAD = "head"  # the head that ships for the model, also in "head+suffix"

DraftDtype = Literal["auto", "target"]

MAX_NODES = 64  # the ancestors of a node are one 64-bit mask
# Of a model with row state, which grows with the chain: a row of DeepSeek-V4-Flash (43 layers,
# bfloat16) has 11.5 MB of ring buffers at 1 node, 14.4 at 16 and 23.7 at 64, where 256 rows would
# take 6 GB from the pages.
MOST_ROW_NODES = 16
MAX_SCRATCH = 64  # branches of a round that have draft KV: those of all steps but the last

_STEPS_OF_MODELS = 3
_FEW_BITS = ("packed", "int8")  # types of weights with which 8 nodes take twice as long as one
_STEPS_OF_LOOKUPS = {NGRAM: 7, SUFFIX: 15}  # looking up costs nothing, so it drafts further


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchLengths:
    """How many of the last tokens must occur earlier before an n-gram drafter proposes a copy."""

    min: int = 1  # verifying a draft costs the same for short and long matches
    max: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """The size of every draft tree; one node is plain decoding."""

    steps: int
    topk: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualDrafts:
    """With what a drafter was fastest."""

    tree: TreeSize  # where a step of a few more query tokens takes little more time
    narrow: TreeSize  # beside weights of few bits on a CPU, where it takes twice the time
    cpu_lookup: str  # ngram, suffix or none: what shares the first of these trees on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """A drafter and the size of its trees. Flags of vLLM and SGLang are converted to this."""

    drafter: str = AUTO  # auto, none, head, ngram, suffix, mtp, or a model given like --model
    steps: int | Literal["auto"] = AUTO  # depth of a tree
    topk: int | Literal["auto"] = AUTO  # children per node; 1 makes a chain
    nodes: int | Literal["auto"] = AUTO  # tokens the target verifies at once, the root included
    lookup: str = NONE  # ngram or suffix: what also drafts, in one tree with the model
    match: MatchLengths = MatchLengths()
    adaptive: bool = True  # draft less, or not at all, while that is faster
    check: bool = True  # at load, report a model that drafts nothing the target accepts
    attention: AttentionName = AUTO  # backend of a draft model; auto: that of the target
    usual: UsualDrafts | None = None  # what is not given; None: as for any drafter
    dtype: DraftDtype = AUTO  # of a head's weights; auto: 8 bits where the target computes float32
    is_block: bool = False  # `fit_block` found that it drafts a block: branches have no draft KV


NO_DRAFT = DraftConfig(drafter=NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """The drafter with values only. `notes` say which sizes were reduced, and why."""

    drafter: str  # none, ngram, suffix, mtp, or the folder of a model
    lookup: str  # none, ngram or suffix
    tree: TreeSize
    match: MatchLengths
    adaptive: bool
    notes: tuple[str, ...]


def check_draft_dtype(value: object) -> None:
    if value not in get_args(DraftDtype):
        raise ConfigError(f"--draft-dtype / draft_dtype must be auto or target, got {value!r}")


def resolve_budget(config: DraftConfig) -> DraftSettings:
    """Check the sizes of a draft tree and replace every "auto". The drafter must be known."""
    assert config.drafter != AUTO, "find_drafter chooses the drafter first"
    _check_match(config.match)
    sizes = {"steps": config.steps, "topk": config.topk, "nodes": config.nodes}
    given = {name: size for name, size in sizes.items() if size != AUTO}
    for name, size in given.items():
        _check_size(name, size)
    tree, notes = _plain(given) if config.drafter == NONE else _trim(_complete(config))
    return DraftSettings(
        drafter=config.drafter,
        lookup=config.lookup,
        tree=tree,
        match=config.match,
        adaptive=config.adaptive,
        notes=notes,
    )


def fit_usual(config: DraftConfig, dtype: str, *, on_cpu: bool) -> DraftConfig:
    """The config with what its drafter is fastest with, beside weights of this type, where nothing
    else is given.
    """
    usual = config.usual
    if usual is None:
        return config
    is_narrow = dtype in _FEW_BITS
    if on_cpu and config.lookup == NONE and not is_narrow:
        config = replace(config, lookup=usual.cpu_lookup)
    if (config.steps, config.topk, config.nodes) != (AUTO, AUTO, AUTO):
        return config
    tree = usual.narrow if is_narrow else usual.tree
    return replace(config, steps=tree.steps, topk=tree.topk, nodes=tree.nodes)


def fit_modules(config: DraftConfig, *, num_modules: int) -> DraftConfig:
    """The sizes for a target with MTP modules: one module is repeated, more have one depth each."""
    if num_modules == 1:
        return config
    if config.topk not in (AUTO, 1):
        raise ConfigError(
            f"one module per depth drafts chains, and --topk is {config.topk}; use --topk 1"
        )
    if config.steps == AUTO and config.nodes == AUTO:
        return replace(config, steps=num_modules)
    steps = config.steps if isinstance(config.steps, int) else 0
    nodes = config.nodes - 1 if isinstance(config.nodes, int) and config.steps == AUTO else 0
    if max(steps, nodes) > num_modules:
        raise ConfigError(
            f"the model has {num_modules} draft modules, one for each step, and "
            f"{max(steps, nodes)} steps are requested; lower --steps or --nodes"
        )
    return config


def fit_block(
    config: DraftConfig,
    *,
    usual: int,  # drafts of a block
    most: int,
) -> DraftConfig:
    """The sizes for a model that drafts a block: the usual one, unless sizes are given."""
    config = replace(config, is_block=True)
    if config.steps == AUTO and config.nodes == AUTO:
        return replace(config, steps=min(usual, MAX_NODES - 1))
    steps = config.steps if isinstance(config.steps, int) else _complete(config).steps
    if config.steps == AUTO:
        return replace(config, steps=min(steps, most))
    if steps > most:
        raise ConfigError(
            f"the head drafts {most} tokens in a block, and {steps} steps are requested; "
            "lower --steps"
        )
    return config


def check_fit(draft: DraftSettings, *, vocab_size: int, max_context: int) -> None:
    """Refuse trees that are larger than the vocabulary or the context of the model."""
    tree = draft.tree
    if tree.topk > vocab_size:
        raise ConfigError(
            f"topk {tree.topk} exceeds the vocabulary of {vocab_size} tokens; lower --topk"
        )
    if tree.steps >= max_context:
        raise ConfigError(
            f"a draft of {tree.steps} steps does not fit in a context of {max_context} tokens; "
            "lower --steps or raise --max-context"
        )


def check_branches(steps: int, topk: int, *, flags: tuple[str, str]) -> None:
    """Refuse trees with more branches than the draft KV holds. `flags` are for the message."""
    scratch = (steps - 1) * topk
    if scratch > MAX_SCRATCH:
        raise ConfigError(
            f"steps {steps} and topk {topk} grow too many branches: (steps - 1) * topk is "
            f"{scratch}, at most {MAX_SCRATCH}; lower {' or '.join(flags)}"
        )


def _check_size(name: str, size: object) -> None:
    most = MAX_NODES - 1 if name == "steps" else MAX_NODES
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        fix = " (--draft none decodes plainly)" if size == 0 else ""
        raise ConfigError(
            f"{name} must be between 1 and {most}, got {size!r}; change --{name}{fix}"
        )


def _check_match(match: MatchLengths) -> None:
    if not 1 <= match.min <= match.max:
        raise ConfigError(
            f"n-grams of {match.min} to {match.max} tokens cannot be looked up; "
            "the shortest must be at least 1 and at most the longest"
        )


def _plain(given: Collection[str]) -> tuple[TreeSize, tuple[str, ...]]:
    flags = ", ".join(f"--{name}" for name in given)
    note = f"{flags}: no effect without a drafter; name one with --draft"
    return TreeSize(steps=0, topk=1, nodes=1), (note,) if given else ()


def _complete(config: DraftConfig) -> TreeSize:
    """The three sizes. A missing size follows from those that are given."""
    topk = 1 if config.topk == "auto" else config.topk
    if config.steps != "auto":
        steps = config.steps
    elif config.nodes != "auto" and config.nodes > 1 and topk == 1:
        steps = config.nodes - 1
    else:
        usual = _STEPS_OF_LOOKUPS.get(config.drafter, _STEPS_OF_MODELS)
        steps = min(usual, 1 + MAX_SCRATCH // topk)
    if config.drafter not in TEXT_DRAFTERS and not config.is_block:
        check_branches(steps, topk, flags=("--steps", "--topk"))
    nodes = min(MAX_NODES, 1 + steps * topk) if config.nodes == "auto" else config.nodes
    return TreeSize(steps=steps, topk=topk, nodes=nodes)


def _trim(requested: TreeSize) -> tuple[TreeSize, tuple[str, ...]]:
    """The sizes without nodes that no branch can fill and without steps that get no node."""
    steps, topk, notes = requested.steps, requested.topk, []
    most = 1 + topk + (steps - 1) * topk * topk  # each of `topk` branches has `topk` children
    nodes = min(requested.nodes, most)
    if nodes < requested.nodes:
        notes.append(
            f"nodes {requested.nodes} becomes {nodes}, all that steps {steps} and topk {topk} "
            "can fill"
        )
    deepest = max(1, nodes - 1)
    if steps > deepest:
        notes.append(f"steps {steps} becomes {deepest}, as deep as {nodes} nodes can reach")
    return TreeSize(steps=min(steps, deepest), topk=topk, nodes=nodes), tuple(notes)
