"""Adapters that cannot be used are refused by name, and the engine goes on."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.lora import save_adapter
from support.tiny import save_tiny

from outrider.errors import RequestError
from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.decoder_loader import load_decoder
from outrider.wire.adapter import NO_ADAPTER, Adapter, AdapterLoad, prefix_salt

CPU = torch.device("cpu")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYER = "base_model.model.model.layers.1."
Q = LAYER + "self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", folder)
    sizes = BankSizes(num_slots=1, max_rank=4)
    return load_decoder(folder, dtype="float32", device=CPU, bank=sizes).adapters


@pytest.fixture
def folder(tmp_path):
    save_adapter("llama", tmp_path, target_modules=["q_proj", "down_proj"])
    return tmp_path


def with_fields(folder, **fields):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | fields))


def with_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"peft_type": "LOHA"}, "only LORA"),
        ({"r": 8}, "has rank 8, and this engine has room for 4; start it with --max-lora-rank 8"),
        ({"r": 2}, r"is \[4, 48\] instead of \[2, 48\]"),
        ({"r": "4"}, "a rank must be a positive integer"),
        ({"lora_alpha": None}, "is damaged"),
        ({"lora_alpha": float("nan")}, "finite"),
        ({"rank_pattern": {"(": 2}}, "is damaged"),
        ({"target_modules": ["q_proj"]}, "target_modules do not name"),
        ({"target_modules": ["q_proj", "down_proj", "v_proj"]}, "has no matrices of .*v_proj"),
    ],
)
def test_a_config_that_cannot_be_followed_is_refused_by_its_field(fields, named, folder, bank):
    with_fields(folder, **fields)
    with pytest.raises(RequestError, match=named):
        bank.check(find_adapter(folder))


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.update({Q: t[Q][:, :-1].clone()}), r"instead of \[4, 32\]"),
        (lambda t: t.update({Q: t[Q].fill_(float("inf"))}), "not finite"),
        (lambda t: t.update({Q: t[Q].to(torch.int64)}), "stored as torch.int64"),
        (lambda t: t.pop(Q), "only one matrix of .*layers.1.self_attn.q_proj"),
        (lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(2)}), "lm_head"),
        (
            lambda t: t.update({Q.replace("layers.1", "layers.9"): torch.zeros(4, 32)}),
            "only one matrix of .*layers.9",
        ),
        (lambda t: [t.pop(name) for name in list(t) if "layers.1" in name], "has no matrices"),
        (lambda t: t.clear(), "any module|has no matrices"),
    ],
)
def test_matrices_of_another_model_are_refused_by_name(change, named, folder, bank):
    with_tensors(folder, change)
    with pytest.raises(RequestError, match=named):
        bank.check(find_adapter(folder))


def test_modules_that_take_no_adapter_are_refused_by_name(tmp_path, bank):
    save_adapter("llama", tmp_path, target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(RequestError, match=r"cannot change|not LoRA matrices"):
        bank.check(find_adapter(tmp_path))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_cut_off_or_missing_is_refused(name, folder, bank):
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(RequestError, match="is damaged"):
        bank.check(find_adapter(folder))
    (folder / name).unlink()
    with pytest.raises(RequestError, match=f"cannot be read .*{name}"):
        find_adapter(folder)


@pytest.mark.parametrize("path", ["~nosuchuser/adapter", "a\0b", "x" * 5000])
def test_a_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(RequestError, match="there is no adapter"):
        find_adapter(path)


def test_an_adapter_that_is_replaced_has_another_version(folder, bank):
    before = find_adapter(folder)
    bank.check(before)
    with_tensors(folder, lambda t: t.update({Q: t[Q] + 1}))
    after = find_adapter(folder)
    assert after != before
    assert prefix_salt(after, "") != prefix_salt(before, "")
    files = bank.read(before)  # it is in host memory since the check
    bank.check(after)
    for name in "abcde":  # many others come between
        save_adapter("llama", folder / name)
        bank.check(find_adapter(folder / name))
    with pytest.raises(RequestError, match="was replaced"):
        bank.read(before)
    bank.place(AdapterLoad(slot=1, files=files))  # a step that was decided has what it needs


def test_no_salt_of_a_client_imitates_an_adapter():
    adapter = Adapter(path="/a", version="1")
    salts = {prefix_salt(adapter, ""), prefix_salt(adapter, "x"), prefix_salt(NO_ADAPTER, "")}
    salts |= {
        prefix_salt(NO_ADAPTER, text) for text in ("x", "1/a", "\xff1\xff/a", "\ufffd1\ufffd/a")
    }
    assert len(salts) == 7
