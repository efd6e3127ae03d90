"""From what the user wrote after --draft to what the engine can load."""

from dataclasses import replace
from pathlib import Path

from outrider.config.draft import AUTO, MTP, NGRAM, NONE, DraftConfig
from outrider.errors import ConfigError
from outrider.store.progress import Reporter
from outrider.store.resolve import resolve


def find_drafter(config: DraftConfig, *, model: str, reporter: Reporter) -> DraftConfig:
    """The same configuration with a drafter that is none, ngram, mtp or a folder here."""
    if not config.drafter.strip():
        raise ConfigError(
            "--draft is empty; use auto, none, ngram, mtp, or a model given like --model"
        )
    name = own_drafter(model) if config.drafter == AUTO else config.drafter
    if name in (NONE, NGRAM, MTP):
        return replace(config, drafter=name)
    return replace(config, drafter=str(_find_folder(name, reporter)))


def own_drafter(model: str) -> str:
    """What "auto" means for a model: the head that belongs to it. No head ships yet."""
    del model
    return NONE


def _find_folder(name: str, reporter: Reporter) -> Path:
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path  # as it is: heads come in more formats than models do
    try:
        return resolve(name, reporter)
    except ConfigError as error:
        raise ConfigError(f"--draft is neither auto, none, ngram nor mtp, and {error}") from error
