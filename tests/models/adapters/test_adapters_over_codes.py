"""Adapters over bfloat16 and quantised weights, against PEFT with the same numbers."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.lora import save_adapter
from support.quantised_models import pack_in_place
from support.tiny import SIZES
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.decoder_loader import load_decoder
from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.adapter import NO_ADAPTER
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import LogprobsWanted, RowSampling

CPU = torch.device("cpu")
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13]
GREEDY = RowSampling(seed=0, temperature=0.0, logprobs=LogprobsWanted(chosen=True))
EXACT = 1e-4
# Difference of a log-probability: the largest, or the mean where products round. Those of codes
# round activations to 8 bits, those of bfloat16 every result.
BASES = {
    "fp8 blocks": ("fp8 blocks", "float32", EXACT),
    "GPTQ": ("GPTQ", "float32", EXACT),
    "NVFP4": ("NVFP4", "float32", EXACT),
    "int4 codes": ("int4 groups of 32", "packed", 0.1),
    "bfloat16": ("", "bfloat16", 0.1),
    "fp8 in bfloat16": ("fp8 rows", "bfloat16", 0.1),
}


class Adapted:
    """A target of one base, its adapter, and PEFT's model."""

    def __init__(self, root, form, dtype):
        torch.manual_seed(6)
        sizes = SIZES | {"hidden_size": 64, "intermediate_size": 64}
        model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.15))
        if dtype == "bfloat16":  # numbers that the type has
            model = model.to(torch.bfloat16).float()
        model.save_pretrained(root / "model")
        plain = pack_in_place(root / "model", form) if form else root / "model"
        base = AutoModelForCausalLM.from_pretrained(plain)
        self.theirs = save_adapter(base, root / "adapter")
        self.adapter = find_adapter(root / "adapter")
        bank = BankSizes(num_slots=2, max_rank=4)
        self.target = load_decoder(root / "model", dtype=dtype, device=CPU, bank=bank)

    def run(self, *draft):
        """An adapted row and a plain one in one batch."""
        asked = [
            replace(make_submission(name, PROMPT, GREEDY, max_tokens=10), adapter=adapter)
            for name, adapter in {"adapted": self.adapter, "plain": NO_ADAPTER}.items()
        ]
        return run_all(engine_of(self.target, Shape(max_loras=2), *draft), asked)

    @torch.inference_mode()
    def logprobs(self, tokens):
        """PEFT's, after the prompt."""
        ids = torch.tensor([PROMPT + tokens])
        logits = self.theirs(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).squeeze(1)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return cache(lambda name: Adapted(tmp_path_factory.mktemp("base"), *BASES[name][:2]))


def distance(ours, theirs, bound):
    differences = (torch.tensor(ours) - theirs).abs()
    return differences.max() if bound == EXACT else differences.mean()


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("name", BASES)
def test_log_probabilities_are_those_of_peft(adapted, name):
    found, bound = adapted(name), BASES[name][2]
    outputs = found.run()
    ours, plain = outputs["adapted"], outputs["plain"]
    assert distance(ours.logprobs, found.logprobs(ours.tokens), bound) < bound
    with found.theirs.disable_adapter():
        right, other = found.logprobs(plain.tokens), found.logprobs(ours.tokens)
    assert distance(plain.logprobs, right, bound) < bound
    assert distance(ours.logprobs, other, bound) > 5 * bound, "the adapter shows"


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", BASES)
def test_drafts_change_no_token_of_an_adapted_row(adapted, name):
    found = adapted(name)
    draft = NgramDraft(budget=Budget(steps=3, topk=2, nodes=6), min_match=1, max_match=3)
    drafted, alone = found.run(draft), found.run()
    for row in ("adapted", "plain"):
        assert drafted[row].tokens == alone[row].tokens
