"""The tokenizer that a user chose: the model's own, or another one, with its chat template."""

from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from outrider.hub.download_progress import Reporter
from outrider.hub.resolve_model import resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """Where tokens and chat templates come from. Empty values mean the model's own."""

    tokenizer: str = ""  # a folder, an alias or a hub id
    chat_template: str = ""  # a file of a jinja template, or the template itself


MODELS_OWN = TokenizerChoice()


def tokenizer_folder(choice: TokenizerChoice, model_folder: Path, reporter: Reporter) -> Path:
    """The folder that the tokenizer is read from."""
    if not choice.tokenizer:
        return model_folder
    path = Path(choice.tokenizer).expanduser()
    if (path / "tokenizer.json").is_file():  # a folder without weights will do
        return path
    return resolve_model(choice.tokenizer, reporter)


def open_tokenizer(folder: Path, choice: TokenizerChoice) -> Tokenizer | NoTokenizer:
    """The tokenizer in a folder, with the template of the choice."""
    return load_tokenizer(folder, chat_template=_template_text(choice.chat_template))


def _template_text(chat_template: str) -> str:
    """The template itself; vLLM takes a file or the text."""
    if not chat_template or "{" in chat_template or "\n" in chat_template:
        return chat_template
    try:
        return Path(chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--chat-template {chat_template} cannot be read ({error}); pass a file or a template"
        ) from error
