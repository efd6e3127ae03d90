"""From what the user wrote after --draft to what the engine can load."""

from dataclasses import replace
from pathlib import Path

from outrider.config.draft_config import AUTO, MTP, NONE, TEXT_DRAFTERS, DraftConfig
from outrider.errors import ConfigError
from outrider.hub.download_progress import Reporter
from outrider.hub.resolve_model import resolve_model
from outrider.hub.shipped_heads import shipped_head


def find_drafter(config: DraftConfig, *, model: str, reporter: Reporter) -> DraftConfig:
    """The configuration with a drafter that is none, ngram, suffix, mtp or a local folder."""
    if not config.drafter.strip():
        raise ConfigError(
            "--draft is empty; use auto, none, ngram, suffix, mtp, or a model given like --model"
        )
    if config.drafter == AUTO:
        return _own_drafter(config, model)
    if config.drafter in (NONE, MTP, *TEXT_DRAFTERS):
        return config
    return replace(config, drafter=str(_find_folder(config.drafter, reporter)))


def has_drafter(model: str) -> bool:
    """Whether "auto" drafts for a model."""
    return shipped_head(model) is not None


def _own_drafter(config: DraftConfig, model: str) -> DraftConfig:
    """The head that ships for the model, with its own trees unless sizes are given; or none.

    It is known to fit, so it is not checked at load.
    """
    head = shipped_head(model)
    if head is None:
        return replace(config, drafter=NONE)
    shipped = replace(config, drafter=str(head.folder), check=False)
    if (config.steps, config.topk, config.nodes) != (AUTO, AUTO, AUTO):
        return shipped
    return replace(shipped, steps=head.steps, topk=head.topk, nodes=head.nodes)


def _find_folder(name: str, reporter: Reporter) -> Path:
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path  # as it is: heads come in more formats than models do
    try:
        return resolve_model(name, reporter)
    except ConfigError as error:
        raise ConfigError(
            f"--draft is neither auto, none, ngram, suffix nor mtp, and {error}"
        ) from error
