"""Whether two model folders have the same token ids, by their tokenizer.json files."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerAgreement:
    """The result of a comparison, and its reason."""

    result: Literal["same", "different", "unknown"]
    reason: str


def check_same_tokenizer(one: Path, other: Path) -> None:
    """Refuse two folders with different tokenizers. Without a tokenizer.json, only warn."""
    agreement = compare_tokenizers(one, other)
    if agreement.result == "different":
        raise ConfigError(f"{agreement.reason}; use two models with the same tokenizer")
    if agreement.result == "unknown":
        _log.warning("tokenizers not compared: %s", agreement.reason)


def compare_tokenizers(one: Path, other: Path) -> TokenizerAgreement:
    """Compare the ids of all tokens."""
    for folder in (one, other):
        if not (folder / "tokenizer.json").is_file():
            return TokenizerAgreement(result="unknown", reason=f"{folder} has no tokenizer.json")
    ours, theirs = _token_ids(one), _token_ids(other)
    if ours == theirs:
        return TokenizerAgreement(result="same", reason=f"{len(ours)} tokens with equal ids")
    differing = ours.items() ^ theirs.items()
    token = min(text for text, _ in differing)
    return TokenizerAgreement(
        result="different",
        reason=(
            f"the tokenizers of {one} and {other} differ: token {token!r} has id "
            f"{ours.get(token, 'none')} and {theirs.get(token, 'none')}"
        ),
    )


def _token_ids(folder: Path) -> dict[str, int]:
    """Every token of a tokenizer.json, added ones included, with its id."""
    path = folder / "tokenizer.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        vocab = fields["model"]["vocab"]
        if isinstance(vocab, list):  # unigram: [text, score] in order of ids
            vocab = {text: index for index, (text, _) in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in fields["added_tokens"]}
        return {**vocab, **added}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); download it again") from error
