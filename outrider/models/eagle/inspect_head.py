"""A report on a draft head before it runs. The loader refuses every head with problems."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields
from outrider.models.dflash.dflash_tensors import read_mask_vector
from outrider.models.eagle.head_config import Algorithm, BlockHeadConfig, HeadConfig
from outrider.models.eagle.head_dialects import is_head_config, parse_head
from outrider.models.eagle.head_tensors import (
    EMBEDDING,
    HEAD,
    MAPS,
    MASK_STATE,
    ExpectedTensors,
    canonical_tensors,
    expected_tensors,
)
from outrider.models.eagle.head_weights import read_tensors
from outrider.models.eagle.token_map import token_map_faults
from outrider.models.head_target import HeadTargetConfig
from outrider.models.model_config import LatentConfig
from outrider.models.rope_config import RopeConfig
from outrider.models.same_vocabulary import TokenizerAgreement, compare_tokenizers
from outrider.ops.attention.attention_rule import WHOLE_TEXT

_ALGORITHMS: dict[Algorithm, str] = {
    "eagle": "EAGLE 1 or 2",
    "eagle3": "EAGLE-3",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dflash2": "DFlash2",
    "dspark": "DSpark",
}
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class UnknownHead:
    """A folder that could not be read as a head. The problems of the report say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFaults:
    """Names of tensors in which weights and config differ."""

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mis_shaped: tuple[str, ...] = ()

    def problems(self) -> Iterator[str]:
        """One line for each kind of fault."""
        kinds = (
            ("lacks", self.missing),
            ("has unexpected", self.unused),
            ("has mis-shaped", self.mis_shaped),
        )
        for fault, names in kinds:
            if names:
                yield (
                    f"the head {fault} tensors ({len(names)}): {', '.join(names)}; "
                    "use weights that belong to its config.json"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReport:
    """A head and how it fits a target. It can be loaded if there are no problems."""

    config: HeadConfig | UnknownHead
    tensors: TensorFaults
    tokenizer: TokenizerAgreement
    facts: tuple[tuple[str, str], ...]  # label and value, for display
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHead:
    """A report on a head, and its tensors by canonical name."""

    report: HeadReport
    tensors: Mapping[str, torch.Tensor]


def is_head(folder: Path) -> bool:
    """Whether a folder holds a draft head and not a whole model."""
    fields = read_fields(folder)
    if is_head_config(fields) or fields.get("num_hidden_layers") != 1:
        return is_head_config(fields)
    tensors, _ = canonical_tensors(read_tensors(folder))
    return "fc.weight" in tensors  # SafeAILab heads name the target's architecture


def inspect_head(folder: Path, target: HeadTargetConfig, target_folder: Path) -> HeadReport:
    """The report on a head. A bad head gives problems, not an exception."""
    return open_head(folder, target, target_folder).report


def open_head(folder: Path, target: HeadTargetConfig, target_folder: Path) -> OpenHead:
    """The report on a head together with its tensors."""
    try:
        tensors, twice = canonical_tensors(read_tensors(folder) | read_mask_vector(folder))
        tensors = _flat_mask(tensors)
        config = parse_head(read_fields(folder), tensors.keys(), target)
        tokenizer = compare_tokenizers(folder, target_folder)
    except ConfigError as error:
        return OpenHead(report=unknown_head(str(error)), tensors={})
    expected = expected_tensors(config, target_hidden=target.hidden)
    faults = tensor_faults(tensors, expected)
    problems = [
        *spelled_twice(twice),
        *_misfits(config, target),
        *faults.problems(),
        *(token_map_faults(tensors, config.output) if not is_about_maps(faults) else ()),
        *([tokenizer.reason] if tokenizer.result == "different" else []),
    ]
    report = HeadReport(
        config=config,
        tensors=faults,
        tokenizer=tokenizer,
        facts=tuple(_facts(config, target, tokenizer)),
        problems=tuple(problems),
        notes=(*config.origin.notes, *_notes(config, target, tensors)),
    )
    return OpenHead(report=report, tensors=tensors)


def _flat_mask(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The aux states of a mask as a vector: projects store them with one or two axes more."""
    if MASK_STATE not in tensors:
        return tensors
    return tensors | {MASK_STATE: tensors[MASK_STATE].flatten()}


def unknown_head(problem: str) -> HeadReport:
    """The report on a folder that could not be read."""
    return HeadReport(
        config=UnknownHead(),
        tensors=TensorFaults(),
        tokenizer=TokenizerAgreement(result="unknown", reason="not compared"),
        facts=(),
        problems=(problem,),
        notes=(),
    )


def tensor_faults(tensors: Mapping[str, torch.Tensor], expected: ExpectedTensors) -> TensorFaults:
    """In what the stored tensors differ from those that a head needs."""
    known = expected.needed.keys() | expected.optional.keys()
    return TensorFaults(
        missing=tuple(sorted(expected.needed.keys() - tensors.keys())),
        unused=tuple(sorted(tensors.keys() - known)),
        mis_shaped=tuple(_mis_shaped(tensors, expected, sorted(known & tensors.keys()))),
    )


def _mis_shaped(
    tensors: Mapping[str, torch.Tensor], expected: ExpectedTensors, names: Iterable[str]
) -> Iterator[str]:
    for name in names:
        found, wanted = tuple(tensors[name].shape), expected.shape(name)
        if found != wanted:
            yield f"{name} {list(found)} instead of {list(wanted)}"
        elif name not in MAPS and tensors[name].dtype not in _FLOATS:
            yield f"{name} of type {tensors[name].dtype} instead of floating point"


def spelled_twice(names: Iterable[str]) -> Iterator[str]:
    """A problem for each canonical name that several stored tensors have."""
    for name in names:
        yield f"the head stores {name} twice, under two spellings; keep one"


def is_about_maps(faults: TensorFaults) -> bool:
    """Whether a map of tokens is missing or mis-shaped, so that its ids are not worth a look."""
    return any(fault.startswith(MAPS) for fault in (*faults.missing, *faults.mis_shaped))


def _misfits(config: HeadConfig, target: HeadTargetConfig) -> Iterator[str]:
    """Why a complete head does not fit this target."""
    aux, hidden = config.aux, target.hidden
    if aux.target_hidden != hidden:
        yield (
            f"the head reads states of width {aux.target_hidden}, the target's have {hidden}; "
            "use the target it was trained for"
        )
    if not aux.is_projected and aux.width != config.width:
        yield (
            f"the head of width {config.width} reads states of width {aux.width} without a "
            "projection; fix hidden_size or target_hidden_size"
        )
    if config.output.vocab != target.vocab_size:
        yield (
            f"the head is for a vocabulary of {config.output.vocab}, the target has "
            f"{target.vocab_size}; use the target it was trained for"
        )
    if any(not 0 <= layer <= target.num_layers for layer in aux.aux_layers.layers):
        yield (
            f"the head reads after layers {_listed(aux.aux_layers.layers)}, the target has "
            f"{target.num_layers}; use the target it was trained for"
        )


def _facts(
    config: HeadConfig, target: HeadTargetConfig, tokenizer: TokenizerAgreement
) -> Iterator[tuple[str, str]]:
    aux, output, origin = config.aux, config.output, config.origin
    layers = f"after {_listed(aux.aux_layers.layers)} of {target.num_layers} layers"
    if target.num_streams > 1:
        layers += f", mean of {target.num_streams} residual streams"
    num_states = len(aux.aux_layers.layers) + aux.aux_layers.final
    yield "dialect", origin.dialect
    yield "algorithm", _ALGORITHMS[origin.algorithm]
    if origin.made_for:
        yield "made for", origin.made_for
    yield (
        "captures",
        "the final state, normalised" if aux.aux_layers.final else layers,
    )
    yield (
        "aux",
        f"{num_states} x {aux.target_hidden} = {aux.width} wide",
    )
    if config.blocks is None:
        yield "state", f"{config.width} wide, from one draft row to the next"
    else:
        yield "block", _block(config.blocks)
    if config.num_layers > 1:
        yield "layers", str(config.num_layers)
    yield "variant", _variant(config)
    yield "rope", f"{_rope(config.layer.rope)}; target: {_rope(target.rope)}"
    yield "positions", f"{config.max_context}; target: {target.max_context}"
    share = output.draft_vocab / output.vocab
    yield "vocabulary", f"{output.draft_vocab} of {output.vocab} tokens ({share:.0%})"
    yield "tokenizer", f"{tokenizer.result}: {tokenizer.reason}"


def _variant(config: HeadConfig) -> str:
    flags = {
        "latents (MLA)": isinstance(config.layer.attention, LatentConfig),
        "norm_before_fc": config.aux.norm == "joint",
        "fc_norm": config.aux.norm == "each",
        "norm_before_residual": config.layer.is_residual_normed,
        "norm_output": config.output.is_state_normed,
        "q_norm, k_norm": config.layer.has_head_norm,
        "sliding_window": min(config.layer.windows) < WHOLE_TEXT,
        "biases": bool(config.layer.biased or config.aux.has_bias),
    }
    return ", ".join(name for name, is_set in flags.items() if is_set) or "plain"


def _block(blocks: BlockHeadConfig) -> str:
    block = blocks.block
    is_any_size = blocks.usual_drafts < block.num_drafts
    parts = [
        f"as many slots in one pass as steps, usually {blocks.usual_drafts}"
        if is_any_size
        else f"{block.size} slots in one pass, {block.num_drafts} drafts",
        f"a slot predicts {'its own token' if block.first else 'the next token'}",
        _slots_read(blocks.causal_layers),
    ]
    parts += [f"Markov head of rank {blocks.markov.rank}"] if blocks.markov else []
    parts += ["confidence head"] if blocks.confidence else []
    if local := blocks.local:
        parts.append(f"convolutions of {local.taps} slots")
        parts.append(f"selector of rank {local.rank} among {local.num_candidates} tokens")
    return ", ".join(parts)


def _slots_read(causal_layers: tuple[bool, ...]) -> str:
    """Which other slots of a block a slot reads."""
    if len(set(causal_layers)) == 1:
        return "causal" if causal_layers[0] else "bidirectional"
    return f"causal in {sum(causal_layers)} of {len(causal_layers)} layers"


def _notes(
    config: HeadConfig, target: HeadTargetConfig, tensors: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Unusual settings that are not problems."""
    if config.layer.rope != target.rope:
        yield "the rope settings differ from the target's; the head runs with its own"
    if config.max_context < target.max_context:
        yield (
            f"the head says {config.max_context} positions; it runs to the target's "
            f"{target.max_context}, and drafts past its own may be poor"
        )
    for name in (EMBEDDING, HEAD):
        if name not in tensors:
            yield f"{name} is not stored: the target's is used"


def _rope(rope: RopeConfig) -> str:
    scaling = type(rope.scaling).__name__.removesuffix("Scaling").lower()
    parts = [f"theta {rope.theta:g}"]
    parts += [f"{scaling} scaling"] if scaling != "no" else []
    parts += ["pairs side by side"] if rope.is_interleaved else []
    return ", ".join(parts)


def _listed(layers: Iterable[int]) -> str:
    return ", ".join(map(str, layers))
