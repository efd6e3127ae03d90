"""Adapted decoders against PEFT: logits, greedy tokens, and every way to scale."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.lora import greedy_tokens, save_adapter
from support.recurrent import FAMILIES as RECURRENT
from support.recurrent import tiny_recurrent
from support.row_harness import PAGE_SIZE
from support.tiny import save_tiny, tiny_model

from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.decoder_loader import load_decoder
from outrider.wire.row_sampling import LogprobsWanted, RowSampling

CPU = torch.device("cpu")
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13]
GREEDY = RowSampling(seed=0, temperature=0.0, logprobs=LogprobsWanted(chosen=True))
FORMS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 5},
        "alpha_pattern": {"down_proj": 3, "layers.0.self_attn.v_proj": 9},
    },
    "all-linear": {"target_modules": "all-linear"},
    "few": {"target_modules": ["k_proj", "down_proj"], "layers_to_transform": [0, 2]},
}


def adapted_engine(folder, **shape):
    bank = BankSizes(num_slots=2, max_rank=6)
    model = load_decoder(folder, dtype="float32", device=CPU, bank=bank)
    return engine_of(model, Shape(max_loras=2, **shape))


def submission(name, adapter, prompt=PROMPT, **fields):
    return replace(make_submission(name, prompt, GREEDY, **fields), adapter=adapter)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2"])
@torch.inference_mode()
def test_adapted_tokens_and_logprobs_are_those_of_peft(family, form, tmp_path):
    save_tiny(family, tmp_path / "model")
    theirs = save_adapter(family, tmp_path / "adapter", **FORMS[form])
    engine = adapted_engine(tmp_path / "model")
    out = run_all(engine, [submission("a", find_adapter(tmp_path / "adapter"))])["a"]
    expected = greedy_tokens(theirs, PROMPT, 8)
    assert out.tokens == expected
    logits = theirs(input_ids=torch.tensor([PROMPT + expected])).logits[0, len(PROMPT) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(expected)[:, None]).squeeze(1)
    assert torch.tensor(out.logprobs).sub(logprobs).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "qwen3.5", "qwen3-next"])
def test_ordinary_attention_beside_experts_and_recurrent_layers_takes_adapters(family, tmp_path):
    base = tiny_recurrent(family) if family in RECURRENT else tiny_model(family)
    base.save_pretrained(tmp_path / "model")
    theirs = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "v_proj", "o_proj"])
    page_size = PAGE_SIZE if family in RECURRENT else 4
    engine = adapted_engine(tmp_path / "model", page_size=page_size)
    out = run_all(engine, [submission("a", find_adapter(tmp_path / "adapter"))])["a"]
    assert out.tokens == greedy_tokens(theirs, PROMPT, 8)
