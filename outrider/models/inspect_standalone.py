"""A report on a whole model as a drafter, without loading its weights."""

from collections.abc import Iterator
from pathlib import Path

from outrider.errors import ConfigError
from outrider.hub.model_folder import checked_folder
from outrider.models.config_fields import read_fields
from outrider.models.decoder_check import check_tensors
from outrider.models.eagle.inspect_head import HeadReport, TensorFaults, UnknownHead, unknown_head
from outrider.models.model_config import ModelConfig, read_config
from outrider.models.pard_draft import USUAL_DRAFTS, is_pard_config, read_pard_token
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.same_vocabulary import TokenizerAgreement, compare_tokenizers
from outrider.models.target import TargetConfig


def inspect_standalone(folder: Path, target: TargetConfig, target_folder: Path) -> HeadReport:
    """The report on a whole model. A bad one gives problems, not an exception."""
    try:
        config = read_config(checked_folder(folder))
        with Checkpoint(folder, config.family.nesting) as checkpoint:
            check_tensors(checkpoint, config)
        how = _how_it_drafts(folder, config)
        tokenizer = compare_tokenizers(folder, target_folder)
    except ConfigError as error:
        return unknown_head(str(error))
    problems = [tokenizer.reason] if tokenizer.result == "different" else []
    if config.recurrence.layers:
        problems.append("the model has row state, which a drafter cannot roll back yet")
    return HeadReport(
        config=UnknownHead(),
        tensors=TensorFaults(),
        tokenizer=tokenizer,
        facts=(("algorithm", how), *_facts(config, target, tokenizer)),
        problems=tuple(problems),
        notes=(),
    )


def _how_it_drafts(folder: Path, config: ModelConfig) -> str:
    fields = read_fields(folder)
    if not is_pard_config(fields):
        return "a whole model, token by token"
    token = read_pard_token(fields, config.vocab_size)
    return (
        f"PARD: a whole model, as many slots in one pass as steps, usually {USUAL_DRAFTS}; masks "
        f"are token {token}"
    )


def _facts(
    config: ModelConfig, target: TargetConfig, tokenizer: TokenizerAgreement
) -> Iterator[tuple[str, str]]:
    yield "layers", f"{config.num_layers}, {config.block.hidden} wide"
    yield "positions", f"{config.max_context}; target: {target.max_context}"
    shared = min(config.vocab_size, target.vocab_size)
    yield "vocabulary", f"{shared} of {target.vocab_size} tokens"
    yield "tokenizer", f"{tokenizer.result}: {tokenizer.reason}"
