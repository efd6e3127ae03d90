"""The tokenizer converted from a GGUF file gives the same ids as the original."""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert

SPECIALS = ["<|start|>", "<|end|>"]
SPACE = "\u2581"


def gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# The splitting rules in the tokenizer.json files of the models.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": gpt2_split(),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), gpt2_split()]
    ),
    "qwen2": regex_split(QWEN2),
    "llama-bpe": regex_split(LLAMA3),
    "dbrx": regex_split(LLAMA3),
    "tekken": regex_split(TEKKEN),
    "gpt-4o": regex_split(GPT_4O),
}


def trained(pre: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    tokenizer.pre_tokenizer = SPLITS[pre]
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    corpus = ["It's the year 2024 and 12345 people said: hello, hello world!\n\n  We're here."] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*corpus, *Path(__file__).read_text().splitlines()], trainer)
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token, _ in vocabulary],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def random_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    pieces = [
        "It's",
        "WE'RE",
        "hello",
        " ",
        "  ",
        "\n",
        "\r\n\n",
        "\t",
        "12345",
        "7",
        "!?",
        "e\u0301",
    ]
    pieces += [
        "\u00e9",
        "\u4f60\u597d",
        "\U0001f600",
        "\u0661\u0662\u0663",
        "\u00a0",
        "_",
        *SPECIALS,
    ]
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(200)]
    return texts + ["".join(chr(rng.randint(1, 0xD7FF)) for _ in range(20)) for _ in range(50)]


def folder_with(make_gguf: Callable, folder: Path, vocabulary: dict[str, Any]) -> Path:
    tiny = make_gguf("llama")
    keys = [key for key in tiny.metadata if key.startswith("tokenizer.")]
    for key in keys:
        del tiny.metadata[key]
    tiny.metadata |= vocabulary
    convert(tiny.write(folder / "tiny.gguf"), folder, SilentReporter())
    return folder


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level_ids_equal_those_of_the_original(
    make_gguf: Callable, tmp_path: Path, pre: str
) -> None:
    original = trained(pre)
    folder = folder_with(make_gguf, tmp_path, vocabulary_of(original, pre))
    copy = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in random_texts(seed=1):
        ids = original.encode(text).ids
        assert copy.encode(text).ids == ids, repr(text)
        assert copy.decode(ids, skip_special_tokens=False) == (
            copy.normalizer.normalize_str(text) if copy.normalizer else text
        )


def test_the_first_token_is_added_when_the_file_says_so(
    make_gguf: Callable, tmp_path: Path
) -> None:
    vocabulary = vocabulary_of(trained("gpt-2"), "gpt-2") | {"tokenizer.ggml.add_bos_token": True}
    folder = folder_with(make_gguf, tmp_path, vocabulary)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello").ids[0] == 0
    assert 0 not in tokenizer.encode("hello", add_special_tokens=False).ids


def test_llama3_files_add_the_first_token_without_a_flag(
    make_gguf: Callable, tmp_path: Path
) -> None:
    vocabulary = vocabulary_of(trained("llama-bpe"), "llama-bpe")
    del vocabulary["tokenizer.ggml.add_bos_token"]
    folder = folder_with(make_gguf, tmp_path, vocabulary)
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello").ids[0] == 0


@pytest.mark.parametrize(("pre", "num_ids"), [("llama-bpe", 1), ("qwen2", 3)])
def test_only_llama3_keeps_a_token_whole_that_merges_do_not_produce(
    make_gguf: Callable, tmp_path: Path, pre: str, num_ids: int
) -> None:
    vocabulary = vocabulary_of(trained(pre), pre)
    vocabulary["tokenizer.ggml.tokens"].append("qzj")
    vocabulary["tokenizer.ggml.token_type"].append(1)
    folder = folder_with(make_gguf, tmp_path, vocabulary)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(tokenizer.encode("qzj").ids) == num_ids


def test_transformers_reads_the_chat_template_and_the_roles(
    make_gguf: Callable, tmp_path: Path
) -> None:
    template = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
    vocabulary = vocabulary_of(trained("smollm"), "smollm")
    vocabulary["tokenizer.chat_template"] = template
    tokenizer = AutoTokenizer.from_pretrained(folder_with(make_gguf, tmp_path, vocabulary))
    assert (tokenizer.bos_token, tokenizer.eos_token) == tuple(SPECIALS)
    messages = [{"role": "user", "content": "hello"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "<|start|>hello<|end|>"


def test_user_defined_tokens_are_matched_whole_and_are_not_special(
    make_gguf: Callable, tmp_path: Path
) -> None:
    vocabulary = vocabulary_of(trained("gpt-2"), "gpt-2")
    vocabulary["tokenizer.ggml.tokens"].append("<think>")
    vocabulary["tokenizer.ggml.token_type"].append(4)
    folder = folder_with(make_gguf, tmp_path, vocabulary)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("<think>a<|end|>").ids
    assert ids[0] == len(vocabulary["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.decode(ids) == "<think>a"


def sentencepiece_vocabulary() -> dict[str, Any]:
    """Pieces learnt from a few words, with scores that fall as sentencepiece's do."""
    control = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{value:02X}>" for value in range(256)]
    words = ["the", "then", "there", "hello", "hell", "low", "lower", "owe", "\u00e9t\u00e9"]
    longer = {
        (SPACE + word)[start:stop]
        for word in words
        for start in range(len(word) + 1)
        for stop in range(start + 2, len(word) + 2)
    }
    rng = random.Random(7)
    pieces = sorted(longer)
    rng.shuffle(pieces)
    letters = sorted(set("".join(words)) | {SPACE})
    tokens = [*control, *in_bytes, *pieces, *letters]
    scores = [0.0] * (3 + 256) + [-float(rank) for rank in range(len(pieces) + len(letters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def sentencepiece_ids(text: str, vocabulary: dict[str, Any]) -> list[int]:
    """The reference: join the neighbours with the best score, leftmost first among equals."""
    index = {token: i for i, token in enumerate(vocabulary["tokenizer.ggml.tokens"])}
    scores = vocabulary["tokenizer.ggml.scores"]
    symbols = list(SPACE + text.replace(" ", SPACE))
    while True:
        joins = [
            (-scores[index[left + right]], place)
            for place, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in index
        ]
        if not joins:
            break
        _, place = min(joins)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    ids: list[int] = []
    for symbol in symbols:
        in_bytes = [index[f"<0x{value:02X}>"] for value in symbol.encode()]
        ids += [index[symbol]] if symbol in index else in_bytes
    return ids


def test_sentencepiece_ids_follow_the_scores(make_gguf: Callable, tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    folder = folder_with(make_gguf, tmp_path, vocabulary)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(3)
    pieces = ["the", "re", "low", "hell", "o", " ", "\u00e9", "\U0001f600", "x", "we", "n", "\n"]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 10)))
        ids = sentencepiece_ids(text, vocabulary)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, repr(text)
        assert tokenizer.encode(text).ids == [1, *ids]
        assert tokenizer.decode(ids) == text


def test_equal_scores_are_refused_because_the_order_of_merges_is_unknown(
    make_gguf: Callable, tmp_path: Path
) -> None:
    vocabulary = sentencepiece_vocabulary()
    vocabulary["tokenizer.ggml.scores"][260] = vocabulary["tokenizer.ggml.scores"][259]
    with pytest.raises(ConfigError, match="scores two tokens equally"):
        folder_with(make_gguf, tmp_path, vocabulary)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokenizer.ggml.pre": "viking"}, "unknown rule tokenizer.ggml.pre = 'viking'"),
        ({"tokenizer.ggml.model": "bert"}, "unsupported tokenizer 'bert'"),
        ({"tokenizer.ggml.merges": ["a nothing"]}, "damaged"),
        ({"tokenizer.ggml.token_type": [1]}, "damaged"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "lists a token twice"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "beyond the vocabulary"),
        ({"tokenizer.ggml.tokens": "a"}, "is not an array"),
    ],
)
def test_a_tokenizer_that_cannot_be_converted_exactly_is_refused(
    make_gguf: Callable, tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    vocabulary = vocabulary_of(trained("gpt-2"), "gpt-2") | change
    with pytest.raises(ConfigError, match=complaint) as caught:
        folder_with(make_gguf, tmp_path, vocabulary)
    assert "\n" not in str(caught.value)
