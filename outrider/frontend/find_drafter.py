"""From what the user wrote after --draft to what the engine can load."""

from dataclasses import replace
from pathlib import Path

from outrider.config.draft_config import (
    AUTO,
    HEAD,
    MTP,
    NGRAM,
    NONE,
    SUFFIX,
    TEXT_DRAFTERS,
    DraftConfig,
)
from outrider.errors import ConfigError
from outrider.hub.download_progress import Reporter
from outrider.hub.own_drafter import holds_drafter
from outrider.hub.resolve_model import resolve_drafter
from outrider.hub.shipped_heads import shipped_head


def find_drafter(
    config: DraftConfig,
    *,
    model: str,  # as the user named it
    folder: Path,  # of the model
    reporter: Reporter,
) -> DraftConfig:
    """The configuration with a drafter that is none, ngram, suffix, mtp or a local folder."""
    if not config.drafter.strip():
        raise ConfigError(
            "--draft is empty; use auto, none, head, ngram, suffix, mtp, or a model given like "
            "--model"
        )
    config = _split_lookup(config, model, folder)
    if config.drafter == HEAD:
        return _shipped(config, model)
    if config.drafter == AUTO:
        return _own_drafter(config, model, folder)
    if config.drafter in (NONE, MTP, *TEXT_DRAFTERS):
        return config
    return replace(config, drafter=str(_find_folder(config.drafter, reporter)))


def _split_lookup(config: DraftConfig, model: str, folder: Path) -> DraftConfig:
    """Split a name such as "head+suffix". Where there is no model, the lookup drafts alone."""
    drafter, plus, lookup = config.drafter.rpartition("+")
    if not plus or lookup not in TEXT_DRAFTERS:
        return config
    if not drafter.strip():
        raise ConfigError(f"--draft {config.drafter} names no model; use --draft {lookup}")
    if drafter in TEXT_DRAFTERS:
        raise ConfigError(
            f"--draft {config.drafter} looks up text twice; use --draft {SUFFIX}, which includes "
            f"{NGRAM}"
        )
    if drafter == NONE or (drafter == AUTO and not has_drafter(model, folder)):
        return replace(config, drafter=lookup)
    return replace(config, drafter=drafter, lookup=lookup)


def has_drafter(model: str, folder: Path) -> bool:
    """Whether "auto" drafts for a model."""
    return shipped_head(model) is not None or holds_drafter(folder)


def _own_drafter(config: DraftConfig, model: str, folder: Path) -> DraftConfig:
    """The head that ships for the model with what it is fastest with, or a drafter of blocks in its
    folder; else none.
    """
    head = shipped_head(model)
    if head is None:
        return replace(config, drafter=MTP if holds_drafter(folder) else NONE)
    return replace(_shipped(config, model), usual=head.usual)


def _shipped(config: DraftConfig, model: str) -> DraftConfig:
    """The head that ships for the model, with nothing else but its trees, unless more is given.

    It is known to fit, so it is not checked at load.
    """
    head = shipped_head(model)
    if head is None:
        lookup = "" if config.lookup == NONE else f"+{config.lookup}"
        alone = NONE if config.lookup == NONE else config.lookup
        raise ConfigError(
            f"no head ships for {model}; name one: --draft HEAD_FOLDER{lookup}, or use "
            f"--draft {alone}"
        )
    usual = replace(head.usual, cpu_lookup=NONE)
    return replace(config, drafter=str(head.folder), check=False, usual=usual)


def _find_folder(name: str, reporter: Reporter) -> Path:
    try:
        return resolve_drafter(name, reporter)
    except ConfigError as error:
        raise ConfigError(
            f"--draft is neither auto, none, head, ngram, suffix nor mtp, and {error}"
        ) from error
