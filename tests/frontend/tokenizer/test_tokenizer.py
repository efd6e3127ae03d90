import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from outrider.errors import ConfigError, RequestError
from outrider.frontend.tokenizer.chat_template import ChatTemplate, NoChatTemplate
from outrider.frontend.tokenizer.token_bytes import BYTE_ALPHABET
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer

Make = Callable[[Backend], Tokenizer]


def write(folder: Path, **files: object) -> Path:
    """Write each value as NAME.json."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def folder(tmp_path: Path, byte_level: Backend) -> Path:
    """A model folder with a byte-level vocabulary and nothing else."""
    byte_level.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@given(tokens=st.lists(st.integers(0, 335)), skip_special=st.booleans())
@settings(deadline=None)
def test_byte_level_decoding_agrees_with_the_library(
    byte_level: Backend, make: Make, tokens: list[int], skip_special: bool
) -> None:
    whole = byte_level.decode(tokens, skip_special_tokens=skip_special)
    assert make(byte_level).decode(tokens, skip_special=skip_special) == whole


@given(tokens=st.lists(st.integers(0, 280).filter(lambda token: not 131 <= token <= 258)))
@settings(deadline=None)
def test_sentencepiece_decoding_agrees_with_the_library_outside_broken_bytes(
    backend: Backend, tokenizer: Tokenizer, tokens: list[int]
) -> None:
    whole = backend.decode(tokens, skip_special_tokens=True)
    assert tokenizer.decode(tokens, skip_special=True) == whole


@given(text=st.text())
@settings(deadline=None)
def test_text_survives_encoding_and_decoding(byte_level: Backend, make: Make, text: str) -> None:
    tokenizer = make(byte_level)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text


def test_a_byte_run_keeps_the_characters_before_the_broken_one(
    stripping: Backend, make: Make
) -> None:
    run = [3 + byte for byte in "\u4f60".encode() + b"\xff"]
    assert stripping.decode(run) == "\ufffd" * 4  # the library gives up on the whole run
    assert make(stripping).decode(run, skip_special=True) == "\u4f60\ufffd"


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    assert sorted(BYTE_ALPHABET) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_ALPHABET.values()) == list(range(256))


def test_a_token_is_displayed_as_it_reads_inside_text(stripping: Backend, make: Make) -> None:
    tokenizer = make(stripping)
    texts = [
        tokenizer.token_text(stripping.token_to_id(t)) for t in ("\u2581the", "</s>", "<0xE4>")
    ]
    assert texts == [" the", "</s>", "\ufffd"]
    assert tokenizer.token_bytes(stripping.token_to_id("<0xE4>")) == b"\xe4"
    assert tokenizer.token_text(9999) == ""


def test_a_vocabulary_without_decoder_joins_its_words_by_spaces(make: Make) -> None:
    words = Backend(models.WordLevel({"ride": 0, "on": 1}, unk_token="ride"))
    assert make(words).decode([0, 1, 1], skip_special=True) == words.decode([0, 1, 1])


def test_a_decoder_that_looks_ahead_is_refused(make: Make) -> None:
    backend = Backend(models.BPE())
    backend.decoder = decoders.BPEDecoder()
    with pytest.raises(ConfigError, match="BPEDecoder"):
        make(backend)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="character 3"):
        tokenizer.encode("hi \ud83d", add_special=False)


def test_truncation_and_padding_saved_with_the_tokenizer_are_ignored(folder: Path) -> None:
    saved = Backend.from_file(str(folder / "tokenizer.json"))
    saved.enable_truncation(2)
    saved.enable_padding(length=64)
    saved.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    text = "the rider goes ahead"
    assert tokenizer.decode(tokenizer.encode(text, add_special=True), skip_special=False) == text


def test_the_vocabulary_ends_after_its_last_added_token(byte_level: Backend, make: Make) -> None:
    assert make(byte_level).vocab_size == byte_level.token_to_id("<think \u2192>") + 1
    assert make(byte_level).special_ids == {0, 1}


def test_eos_ids_are_united_over_all_files(folder: Path) -> None:
    write(
        folder,
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": None, "text_config": {"eos_token_id": 9}},
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
    )
    assert load_tokenizer(folder).eos_ids == {7, 8, 9, 1}


def test_roles_may_come_from_the_special_tokens_map(folder: Path) -> None:
    write(folder, special_tokens_map={"bos_token": "<|begin|>", "eos_token": "<|im_end|>"})
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos, tokenizer.eos_ids) == ((0,), {1})


def test_chat_stops_at_the_end_of_turn_that_the_template_writes(folder: Path) -> None:
    write(folder, config={"eos_token_id": 5}, tokenizer_config={"chat_template": "<|im_end|>"})
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_ids, tokenizer.stop_ids) == ({5}, {5, 1})


def test_an_end_of_turn_that_the_template_never_writes_stops_nothing(folder: Path) -> None:
    write(folder, config={"eos_token_id": 5}, tokenizer_config={"chat_template": "plain"})
    assert load_tokenizer(folder).stop_ids == {5}


def test_the_post_processor_adds_its_tokens_only_when_asked(stripping: Backend, make: Make) -> None:
    tokenizer = make(stripping)
    bare = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("the", add_special=True) == [1, *bare]


def test_a_config_may_demand_the_bos_that_the_tokenizer_forgets(folder: Path) -> None:
    write(folder, tokenizer_config={"add_bos_token": True, "bos_token": "<|begin|>"})
    tokenizer = load_tokenizer(folder)
    bare = tokenizer.encode("the", add_special=False)
    assert tokenizer.encode("the", add_special=True) == [0, *bare]


def test_a_demanded_bos_is_not_added_twice(tmp_path: Path, stripping: Backend) -> None:
    stripping.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, tokenizer_config={"add_bos_token": True, "bos_token": "<s>"})
    assert load_tokenizer(tmp_path).encode("the", add_special=True).count(1) == 1


def test_tokens_added_only_in_the_config_are_known(folder: Path, byte_level: Backend) -> None:
    size = byte_level.get_vocab_size()
    write(
        folder,
        tokenizer_config={"added_tokens_decoder": {size: {"content": "<tool>", "special": True}}},
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<tool>", add_special=False) == [size]
    assert size in tokenizer.special_ids


def test_added_tokens_that_leave_a_gap_are_refused(folder: Path) -> None:
    write(folder, tokenizer_config={"added_tokens_decoder": {"999": {"content": "<tool>"}}})
    with pytest.raises(ConfigError, match="the id 999"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "listed",
    ["{{ bos_token }}hi", [{"name": "default", "template": "{{ bos_token }}hi"}]],
    ids=["text", "named"],
)
def test_a_chat_template_may_be_text_or_a_list(folder: Path, listed: object) -> None:
    write(folder, tokenizer_config={"bos_token": "<|begin|>", "chat_template": listed})
    tokenizer = load_tokenizer(folder)
    prompt = tokenizer.chat_template.render(
        [{"role": "user", "content": ""}], add_generation_prompt=True
    )
    assert tokenizer.encode(prompt, add_special=False)[0] == 0
    assert prompt == "<|begin|>hi"


def test_template_files_win_over_the_config(folder: Path) -> None:
    messages = [{"role": "user", "content": ""}]
    write(folder, tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    read = load_tokenizer(folder).chat_template
    assert read.render(messages, add_generation_prompt=True) == "of the processor"
    (folder / "chat_template.jinja").write_text("new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    chat = load_tokenizer(folder).chat_template
    assert isinstance(chat, ChatTemplate)
    assert chat.render(messages, add_generation_prompt=True) == "new"
    assert chat.render(messages, add_generation_prompt=True, tools=[{}]) == "tools"


def test_a_model_without_template_says_so_in_its_type(folder: Path) -> None:
    assert isinstance(load_tokenizer(folder).chat_template, NoChatTemplate)


def test_a_folder_without_tokenizer_serves_ids_only(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, config={"eos_token_id": 2}))
    assert isinstance(tokenizer, NoTokenizer)
    assert (tokenizer.eos_ids, tokenizer.stop_ids) == ({2}, {2})
    assert tokenizer.decode([5, 6], skip_special=True) == ""
    with pytest.raises(RequestError, match="prompt_token_ids"):
        tokenizer.encode("hello", add_special=True)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ConfigError, match=name):
        load_tokenizer(folder)


def test_an_unknown_vocabulary_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a sentencepiece model")
    with pytest.raises(ConfigError, match=r"add tokenizer\.json"):
        load_tokenizer(write(tmp_path, config={"model_type": "llama"}))


def test_an_older_layout_is_converted_by_transformers(folder: Path, byte_level: Backend) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    write(folder, vocab=model["vocab"], config={"model_type": "gpt2"})
    merges = (" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("the rider", add_special=False) == byte_level.encode("the rider").ids


def test_the_package_imports_without_torch_and_transformers() -> None:
    probe = (
        "import sys; import outrider.frontend.tokenizer.detokenizer; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize(
    "files",
    [
        {"generation_config": {"eos_token_id": "end"}},
        {"generation_config": {"eos_token_id": [[1]]}},
        {"config": {"eos_token_id": True}},
        {"config": {"text_config": {"eos_token_id": 1.5}}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "a"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"3": "a"}}},
        {"tokenizer_config": {"added_tokens_decoder": [1]}},
        {"tokenizer_config": {"chat_template": [{"name": "default"}]}},
        {"tokenizer_config": {"chat_template": 3}},
    ],
)
def test_values_of_another_type_are_refused_with_the_folder(folder: Path, files: dict) -> None:
    write(folder, **files)
    with pytest.raises(ConfigError, match=str(folder)):
        load_tokenizer(folder)


def test_a_config_that_is_nested_too_deeply_is_refused_by_name(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[" * 200_000)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_tokenizer(folder)


def test_other_threads_run_while_a_long_text_is_encoded(folder: Path) -> None:
    """A server answers others meanwhile."""
    tokenizer, ids = load_tokenizer(folder), []
    text = "a tale of two cities " * 10_000
    encoding = threading.Thread(
        target=lambda: ids.append(tokenizer.encode(text, add_special=False))
    )
    num_turns = 0
    encoding.start()
    while encoding.is_alive():
        time.sleep(0.0005)
        num_turns += 1
    assert tokenizer.decode(ids[0], skip_special=False) == text
    assert num_turns > 10


def test_a_file_that_makes_the_library_panic_is_refused(tmp_path: Path) -> None:
    """A prefix that is longer than the tokens which should begin with it."""
    vocab = {"a": 0, "b": 1, "ab": 2}
    backend = Backend(models.BPE(vocab=vocab, merges=[("a", "b")]))
    written = json.loads(backend.to_str())
    written["model"]["continuing_subword_prefix"] = "#######"
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=r"cannot be read .*out of range.*download it again"):
        load_tokenizer(tmp_path)
