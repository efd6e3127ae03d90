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
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    try:
        return TextFiles(
            special_tokens=_special_tokens(named),
            added_tokens=_added_tokens(config),
            adds_bos=config.get("add_bos_token") is True,
            eos_ids=_all_eos_ids(folder),
            templates=_templates(folder, config),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"{folder} has a damaged tokenizer_config.json or chat template ({error!r}); "
            "download them again"
        ) from error


def read_json(path: Path) -> Json:
    """The object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
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


def _all_eos_ids(folder: Path) -> frozenset[int]:
    """The end-of-sequence ids of all configs of the model."""
    generation, model = folder / "generation_config.json", folder / "config.json"
    fields = read_json(model)
    inner = fields.get("text_config")
    return (
        _eos_ids(read_json(generation), generation)
        | _eos_ids(fields, model)
        | _eos_ids(inner if isinstance(inner, dict) else {}, model)
    )


def _eos_ids(config: Json, path: Path) -> frozenset[int]:
    """The ids in a config. Whether the model's vocabulary has them is checked with the model."""
    stored = config.get("eos_token_id")
    ids = [] if stored is None else stored if isinstance(stored, list) else [stored]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ConfigError(f"{path} needs one or more token ids in eos_token_id, got {stored}")
    return frozenset(ids)


def _templates(folder: Path, config: Json) -> dict[str, str]:
    """Chat templates by name. Template files take precedence over those inside the config."""
    listed = config.get("chat_template") or {}
    if isinstance(listed, str):
        listed = {DEFAULT: listed}
    elif isinstance(listed, list):
        listed = {entry["name"]: entry["template"] for entry in listed}
    of_processor = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(of_processor, str):  # of models that read images
        listed = listed | {DEFAULT: of_processor}
    paths = {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        paths[DEFAULT] = folder / "chat_template.jinja"
    return listed | {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
