"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

GGUF names the rule that splits text before the merges (`tokenizer.ggml.pre`) but does not contain
it. An unknown name is refused, because a similar rule would silently give other tokens.
"""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from outrider.errors import ConfigError
from outrider.hub.gguf_read import GgufFile, Metadata

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type
_SPACE_SYMBOL = "\u2581"  # how sentencepiece writes a space
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}  # GGUF to Hugging Face

# Contractions, words with one leading symbol, numbers, punctuation, line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SINGLE_DIGITS = _WORDS.format(numbers=r"\p{N}")
_DIGIT_TRIPLES = _WORDS.format(numbers=r"\p{N}{1,3}")
# Words end where lower case turns to upper case.
_CASED_WORDS = (
    r"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*"
    r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{ending}"
    r"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+"
    r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{ending}"
    r"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED_WORDS.format(ending="", numbers=r"\p{N}")
_GPT_4O = _CASED_WORDS.format(ending=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", numbers=r"\p{N}{1,3}")


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """The tokenizer, with special tokens and the tokens that are added around prompts."""
    metadata = file.metadata
    kind = metadata.text(_KEY + "model")
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f"{file.name} has the unsupported tokenizer {kind!r}; use a model whose "
            "tokenizer.ggml.model is gpt2 or llama, or its Hugging Face folder"
        )
    try:
        tokenizer = _byte_level(file) if kind == "gpt2" else _sentencepiece(file)
        _mark_added_tokens(tokenizer, metadata)
        _add_prompt_tokens(tokenizer, metadata)
    except ConfigError:
        raise
    except (
        Exception
    ) as error:  # tokenizers raises bare Exception, for example for a merge of unknown tokens
        raise ConfigError(f"the tokenizer in {file.name} is damaged; get the file again") from error
    return tokenizer


def tokenizer_config_of(file: GgufFile) -> dict[str, Any]:
    """The content of tokenizer_config.json: the roles of tokens and the chat template."""
    metadata = file.metadata
    tokens = metadata.sequence(_KEY + "tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds(metadata, "bos"),
        "add_eos_token": _adds(metadata, "eos"),
    }
    for role, name in _ROLES.items():
        if f"{_KEY}{role}_token_id" in metadata:
            config[f"{name}_token"] = tokens[_role_id(metadata, role)]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    return config


def generation_config_of(file: GgufFile) -> dict[str, Any]:
    """The ids that end a generation: end of sequence, of turn and of message."""
    metadata = file.metadata
    ends = [
        _role_id(metadata, role)
        for role in ("eos", "eot", "eom")
        if f"{_KEY}{role}_token_id" in metadata
    ]
    if not ends:
        raise ConfigError(f"{file.name} lacks {_KEY}eos_token_id; use a complete GGUF file")
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    if _KEY + "bos_token_id" in metadata:
        config["bos_token_id"] = _role_id(metadata, "bos")
    return config


def _byte_level(file: GgufFile) -> Tokenizer:
    name = file.metadata.text(_KEY + "pre")
    if name not in _SPLITTERS:
        raise ConfigError(
            f"{file.name} splits text by the unknown rule {_KEY}pre = {name!r}; use a model with "
            f"{', '.join(_SPLITTERS)}, or its Hugging Face folder"
        )
    merges = [tuple(merge.split(" ")) for merge in file.metadata.sequence(_KEY + "merges")]
    # In some a word that is itself a token stays whole, even if merges would not produce it.
    whole_words = name in _WITH_WHOLE_WORDS
    tokenizer = Tokenizer(models.BPE(_vocabulary(file), merges, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = _SPLITTERS[name]()
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _split_words(pattern: str) -> PreTokenizer:
    words = Split(Regex(pattern), behavior="isolated")
    return Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])


def _split_gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _split_smollm() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _split_gpt2()])


_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_WITH_WHOLE_WORDS = (*_LLAMA3_NAMES, "tekken")  # they also begin prompts with a token
_SPLITTERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": _split_gpt2,
    "smollm": _split_smollm,
    "qwen2": lambda: _split_words(_SINGLE_DIGITS),
    "dbrx": lambda: _split_words(_DIGIT_TRIPLES),
    "gpt-4o": lambda: _split_words(_GPT_4O),
    "tekken": lambda: _split_words(_TEKKEN),
    **dict.fromkeys(_LLAMA3_NAMES, lambda: _split_words(_DIGIT_TRIPLES)),
}


def _sentencepiece(file: GgufFile) -> Tokenizer:
    """Sentencepiece joins the neighbours with the best score, as BPE does with sorted merges."""
    vocabulary = _vocabulary(file)
    unknown = file.metadata.sequence(_KEY + "tokens")[_role_id(file.metadata, "unknown")]
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges_by_score(file, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE_SYMBOL)]
    restored = [decoders.Replace(_SPACE_SYMBOL, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _flag_or(file.metadata, _KEY + "add_space_prefix", default=True):
        spaces.insert(0, normalizers.Prepend(_SPACE_SYMBOL))
        restored.append(decoders.Strip(content=" ", left=1))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(restored)
    return tokenizer


def _merges_by_score(file: GgufFile, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """All pairs of tokens that join to a normal token, best score first."""
    scores = file.metadata.sequence(_KEY + "scores")
    kinds = file.metadata.sequence(_KEY + "token_type")
    joins = [
        (-scores[index], vocabulary[piece[:cut]], piece[:cut], piece[cut:])
        for piece, index in vocabulary.items()
        if kinds[index] == _NORMAL
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    joined = {left + right for _, _, left, right in joins}
    if len({score for score, *_ in joins}) != len(joined):
        raise ConfigError(
            f"{file.name} scores two tokens equally, so the order of its merges is not known; "
            "use the Hugging Face folder of this model"
        )
    return [(left, right) for _, _, left, right in sorted(joins)]


def _vocabulary(file: GgufFile) -> dict[str, int]:
    tokens = file.metadata.sequence(_KEY + "tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ConfigError(f"{file.name} lists a token twice; use another GGUF of the model")
    return vocabulary


def _mark_added_tokens(tokenizer: Tokenizer, metadata: Metadata) -> None:
    """Control tokens become special. User-defined tokens are matched whole but are not special."""
    kinds = metadata.sequence(_KEY + "token_type")
    named = list(zip(metadata.sequence(_KEY + "tokens"), kinds, strict=True))
    special = [token for token, kind in named if kind in (_UNKNOWN, _CONTROL)]
    visible = [token for token, kind in named if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in visible])


def _add_prompt_tokens(tokenizer: Tokenizer, metadata: Metadata) -> None:
    first = [_role_id(metadata, "bos")] if _adds(metadata, "bos") else []
    last = [_role_id(metadata, "eos")] if _adds(metadata, "eos") else []
    if not first and not last:
        return
    tokens = metadata.sequence(_KEY + "tokens")
    names = [tokens[index] for index in (*first, *last)]
    single = [*names[: len(first)], "$A", *names[len(first) :]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, "$B:1"],
        special_tokens=list(zip(names, (*first, *last), strict=True)),
    )


def _adds(metadata: Metadata, role: str) -> bool:
    """Whether prompts get this token automatically. Without a flag, the family decides."""
    is_llama = metadata.text(_KEY + "model") == "llama"
    begins = _KEY + "pre" in metadata and metadata.text(_KEY + "pre") in _WITH_WHOLE_WORDS
    return _flag_or(
        metadata, f"{_KEY}add_{role}_token", default=role == "bos" and (is_llama or begins)
    )


def _flag_or(metadata: Metadata, key: str, *, default: bool) -> bool:
    return metadata.flag(key) if key in metadata else default


def _role_id(metadata: Metadata, role: str) -> int:
    index = metadata.integer(f"{_KEY}{role}_token_id")
    if not 0 <= index < len(metadata.sequence(_KEY + "tokens")):
        raise ConfigError(
            f"{_KEY}{role}_token_id is {index}, beyond the vocabulary; get the file again"
        )
    return index
