"""A report on Medusa heads before they run. The loader refuses all heads with problems."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields
from outrider.models.eagle.head_tensors import TOKEN_MAP, canonical_tensors
from outrider.models.eagle.head_weights import read_tensors
from outrider.models.eagle.inspect_head import (
    HeadReport,
    UnknownHead,
    is_about_maps,
    spelled_twice,
    tensor_faults,
    unknown_head,
)
from outrider.models.head_target import HeadTargetConfig
from outrider.models.medusa.medusa_fields import MedusaConfig, is_medusa_config, parse_medusa
from outrider.models.medusa.medusa_tensors import (
    canonical_medusa,
    cut_to_map,
    expected_medusa,
    split_heads,
)
from outrider.models.same_vocabulary import TokenizerAgreement, compare_tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMedusa:
    """A report on heads, what they are, and their tensors by canonical name."""

    report: HeadReport
    config: MedusaConfig | UnknownHead
    tensors: Mapping[str, torch.Tensor]


def is_medusa(folder: Path) -> bool:
    """Whether a folder holds Medusa heads. One that cannot be read holds none."""
    try:
        return is_medusa_config(read_fields(folder))
    except ConfigError:
        return False


def inspect_medusa(folder: Path, target: HeadTargetConfig, target_folder: Path) -> HeadReport:
    """The report on the heads in a folder. Bad heads give problems, not an exception."""
    return open_medusa(folder, target, target_folder).report


def open_medusa(folder: Path, target: HeadTargetConfig, target_folder: Path) -> OpenMedusa:
    """The report on the heads in a folder together with their tensors."""
    try:
        found, twice = canonical_tensors(read_tensors(folder), canonical_medusa)
        stored = cut_to_map(found)
        config = parse_medusa(read_fields(folder), stored.keys(), target)
        tokenizer = compare_tokenizers(folder, target_folder)
    except ConfigError as error:
        return OpenMedusa(report=unknown_head(str(error)), config=UnknownHead(), tensors={})
    tensors, num_stored = split_heads(stored, config.num_heads)
    hidden, vocab = target.hidden, target.vocab_size
    faults = tensor_faults(tensors, expected_medusa(config, hidden=hidden, vocab=vocab))
    problems = [
        *spelled_twice(twice),
        *faults.problems(),
        *(_map_faults(tensors, vocab) if not is_about_maps(faults) else ()),
    ]
    report = HeadReport(
        config=UnknownHead(),
        tensors=faults,
        tokenizer=tokenizer,
        facts=tuple(_facts(config, target, tokenizer)),
        problems=(*problems, *([tokenizer.reason] if tokenizer.result == "different" else [])),
        notes=tuple(_notes(config, num_stored)),
    )
    return OpenMedusa(report=report, config=config, tensors=tensors)


def _map_faults(tensors: Mapping[str, torch.Tensor], vocab: int) -> Iterator[str]:
    if TOKEN_MAP not in tensors:
        return
    ids = tensors[TOKEN_MAP]
    if ids.is_floating_point() or bool((ids < 0).any() | (ids >= vocab).any()):
        yield f"{TOKEN_MAP} leads outside the target's {vocab} tokens; use the map of these heads"
    elif bool((ids.sort().values.diff() == 0).any()):
        yield f"{TOKEN_MAP} names a token twice; use the map that was saved with these heads"


def _facts(
    config: MedusaConfig, target: HeadTargetConfig, tokenizer: TokenizerAgreement
) -> Iterator[tuple[str, str]]:
    yield "dialect", config.dialect
    yield "algorithm", "Medusa"
    yield "captures", "the final state, normalised"
    yield "block", f"{config.num_heads} heads in one pass, each drafts one token by itself"
    yield (
        "variant",
        f"residual blocks of a head: {config.num_blocks}"
        + (", biases" if config.has_bias else "")
        + (", one lm_head for all" if config.shares_head else ""),
    )
    share = config.draft_vocab / target.vocab_size
    yield "vocabulary", f"{config.draft_vocab} of {target.vocab_size} tokens ({share:.0%})"
    yield "tokenizer", f"{tokenizer.result}: {tokenizer.reason}"


def _notes(config: MedusaConfig, num_stored: int) -> Iterator[str]:
    if num_stored > config.num_heads and not config.shares_head:
        yield (
            f"{num_stored} heads are stored, and config.json says {config.num_heads}: the others "
            "are not used; raise the number in config.json to use them"
        )
