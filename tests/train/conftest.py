"""A tiny target with predictable answers, its prompts, and runs of `outrider train` on them."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from support.tiny import tiny_model
from tokenizers import decoders, models, pre_tokenizers

from outrider.cli.main import run

SIZES = "--device cpu --length 80 --batch 8 --depth 5 --draft-vocab 60 --answer-tokens 32"
PACE = "--lr 2e-2 --head-frozen 0 --head-lr 1 --log-every 10 --eval-every 1000 --dtype float32"

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }}z{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of three layers whose next token depends mostly on the last token."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_model("llama", seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.02)
        model.lm_head.weight.mul_(2.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "train.jsonl", seed=0, count=60)


def write_prompts(path: Path, *, seed: int, count: int) -> Path:
    """Random ids: the target has no tokenizer."""
    draw = random.Random(seed)
    lines = [
        {"id": f"{seed}-{i}", "prompt_token_ids": draw.choices(range(3, 67), k=draw.randint(2, 8))}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def chat_folder(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with one token per letter and a chat template. "z" ends a turn."""
    folder = tmp_path_factory.mktemp("chat")
    shutil.copytree(target_folder, folder, dirs_exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?"
    vocab = {letter: token for token, letter in enumerate(letters)} | {"~": len(letters)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="~"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "z", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


Train = Callable[..., int]


@pytest.fixture(scope="session")
def train(target_folder: Path, prompts_file: Path) -> Train:
    """Runs the command. A repeated flag overrides the default."""

    def start(out: Path, flags: str = "") -> int:
        where = ["--model", target_folder, "--prompts", prompts_file, "--out", out]
        return run(["train", "eagle3", *map(str, where), *f"{SIZES} {PACE} {flags}".split()])

    return start


@pytest.fixture(scope="session")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a hundred steps."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert train(out, "--steps 100 --save-every 40") == 0
    return out
