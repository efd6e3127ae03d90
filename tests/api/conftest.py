"""A real tokenizer of fifty tokens, an engine on paper that speaks it, and a tiny real model."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from support.paper import PaperRunner, facts
from tokenizers import decoders, models, pre_tokenizers

from outrider.api.frontend import Frontend
from outrider.engine.engine import Engine
from outrider.text.tokenizer import NoTokenizer, Tokenizer, load_tokenizer

END, START = "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How a byte-level vocabulary spells space, newline and the two bytes of an e with an acute accent.
SPACE, NEWLINE, ACUTE = "\u0120", "\u010a", ("\u00c3", "\u00a9")
PIECES = [
    END,
    START,
    *"abcdefghijklmnopqrstuvwxyz",
    SPACE,
    NEWLINE,
    *ACUTE,
    *"0123456789.,!?",
    "th",
    "the",
]


def write_tokenizer(folder: Path) -> None:
    """The text files of a model folder."""
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(PIECES)},
            merges=[("t", "h"), ("th", "e")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, START])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    loaded = load_tokenizer(folder)
    assert isinstance(loaded, Tokenizer)
    return loaded


@pytest.fixture(scope="session")
def make_frontend(tokenizer: Tokenizer) -> Callable[..., Frontend]:
    """Makes a front end over the real engine; the model on paper is a hash of the history."""

    def make(own: Tokenizer | NoTokenizer = tokenizer, **sizes) -> Frontend:
        known = facts(**{"max_context": 128, "num_pages": 256, **sizes})
        return Frontend(Engine(PaperRunner(known, random.Random(1)), known), own)

    return make


@pytest.fixture
def frontend(make_frontend: Callable[..., Frontend]) -> Frontend:
    return make_frontend()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights and the tokenizer above."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def ids_only_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without the files of a tokenizer."""
    folder = tmp_path_factory.mktemp("ids_only")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disturbed copy of that model: it agrees with the original now and then."""
    import torch

    folder = tmp_path_factory.mktemp("draft")
    model = tiny_llama()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def foreign_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with two letters of the tokenizer swapped."""
    folder = tmp_path_factory.mktemp("foreign")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    swapped = json.loads(path.read_text())
    vocab = swapped["model"]["vocab"]
    vocab["y"], vocab["z"] = vocab["z"], vocab["y"]
    path.write_text(json.dumps(swapped))
    return folder


def tiny_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,  # wide enough that the most likely token is clear
        bos_token_id=1,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()
