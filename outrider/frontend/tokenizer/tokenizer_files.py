"""Reads what the files of a model folder say about text, besides the vocabulary."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from outrider.errors import ConfigError
from outrider.frontend.tokenizer.chat_template import DEFAULT

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFiles:
    """The contents of tokenizer_config.json and the files beside it."""

    special_tokens: Mapping[str, str]  # by role, such as "bos_token"
    added_tokens: Mapping[int, AddedToken]
    adds_bos: bool  # required by the config, even if the tokenizer's post-processor does not do it
    eos_ids: frozenset[int]  # from the model's own configs
    templates: Mapping[str, str]  # chat templates by name


def read_text_files(folder: Path) -> TextFiles:
    config = read_json(folder / "tokenizer_config.json")
    model = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    return TextFiles(
        special_tokens=_special_tokens(named),
        added_tokens=_added_tokens(config),
        adds_bos=config.get("add_bos_token") is True,
        eos_ids=_eos_ids(generation) | _eos_ids(model) | _eos_ids(model.get("text_config") or {}),
        templates=_templates(folder, config),
    )


def read_json(path: Path) -> Json:
    """The object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object; download it again")
    return content


def _special_tokens(config: Json) -> dict[str, str]:
    """Special tokens by role. Old files have a string, newer ones an object around it."""
    entries = {role: entry for role, entry in config.items() if role.endswith("_token")}
    texts = {role: e.get("content") if isinstance(e, dict) else e for role, e in entries.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _added_tokens(config: Json) -> dict[int, AddedToken]:
    entries: Mapping[str, Json] = config.get("added_tokens_decoder") or {}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {
        int(token): AddedToken(entry["content"], **{f: entry[f] for f in flags if f in entry})
        for token, entry in entries.items()
    }


def _eos_ids(config: Json) -> frozenset[int]:
    ids = config.get("eos_token_id")
    if isinstance(ids, int):
        return frozenset({ids})
    return frozenset(ids or ())


def _templates(folder: Path, config: Json) -> dict[str, str]:
    """Chat templates by name. Template files take precedence over those inside the config."""
    listed = config.get("chat_template") or {}
    if isinstance(listed, str):
        listed = {DEFAULT: listed}
    elif isinstance(listed, list):
        listed = {entry["name"]: entry["template"] for entry in listed}
    paths = {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        paths[DEFAULT] = folder / "chat_template.jinja"
    return listed | {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
