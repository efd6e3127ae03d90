"""Adapters on several ranks: each rank holds its part, and the tokens are those of PEFT."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.engines import Shape, make_submission, run_all
from support.lora import greedy_tokens, save_adapter
from support.rank_matrix import ranked_engine
from support.rank_models import RankedModels, RankFamily
from support.tiny import save_tiny

from outrider import LLM, LoRARequest, SamplingParams
from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.target import load_target
from outrider.wire.adapter import NO_ADAPTER
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling

CPU = torch.device("cpu")
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13]
GREEDY = RowSampling(seed=0, temperature=0.0)
BANK = BankSizes(num_slots=2, max_rank=4)


class AdaptedModels(RankedModels):
    """The same with room for adapters."""

    def __init__(self, family, size):
        super().__init__(family, size)
        self.targets = [
            load_target(family.folder, dtype="float32", device=CPU, ranks=ranks, bank=BANK)
            for ranks in self.shared_by
        ]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("family", "size"), [("llama", 2), ("llama", 4), ("llama-uneven", 3), ("qwen2", 2)]
)
def test_ranks_give_the_tokens_of_peft(family, size, tmp_path):
    own = RankFamily(family, tmp_path)
    assert own.theirs is not None
    models = AdaptedModels(own, size)
    theirs = save_adapter(family, tmp_path / "adapter", seed=1)
    adapters = {"adapted": find_adapter(tmp_path / "adapter"), "plain": NO_ADAPTER}
    drafts = models.drafts("ngram", Budget(steps=3, topk=1, nodes=4))
    engine = ranked_engine(models, Shape(max_loras=2, executor="tape"), drafts)
    requests = [
        replace(make_submission(name, PROMPT, GREEDY), adapter=adapter)
        for name, adapter in adapters.items()
    ]
    out = run_all(engine, requests)
    assert out["adapted"].tokens == greedy_tokens(theirs, PROMPT, 8)
    with theirs.disable_adapter():
        assert out["plain"].tokens == greedy_tokens(theirs, PROMPT, 8)


def test_only_the_first_rank_reads_the_files_of_an_adapter(tmp_path):
    own = RankFamily("llama", tmp_path)
    assert own.theirs is not None
    theirs = save_adapter("llama", tmp_path / "adapter", seed=1)
    models = AdaptedModels(own, 2)
    drafts = models.drafts("ngram", Budget(steps=3, topk=1, nodes=4))
    engine = ranked_engine(models, Shape(max_loras=2, executor="tape"), drafts)
    adapter = find_adapter(tmp_path / "adapter")
    engine.add(replace(make_submission("adapted", PROMPT, GREEDY), adapter=adapter))
    shutil.rmtree(tmp_path / "adapter")  # it was checked: from here on no rank needs the files
    assert run_all(engine, [])["adapted"].tokens == greedy_tokens(theirs, PROMPT, 8)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tensor_parallel_size", "data_parallel_size"])
def test_processes_get_the_adapter_from_the_first(way, tmp_path):
    save_tiny("llama", tmp_path / "model")
    theirs = save_adapter("llama", tmp_path / "adapter", seed=1)
    sizes = {"max_num_seqs": 4, "kv_tokens": 1024, way: 2}
    llm = LLM(tmp_path / "model", draft="none", enable_lora=True, **sizes)
    lora = LoRARequest("a", 1, str(tmp_path / "adapter"))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": PROMPT}] * 3
    outputs = llm.generate(prompts, params, lora_request=[lora, None, lora], use_tqdm=False)
    adapted = greedy_tokens(theirs, PROMPT, 8)
    with theirs.disable_adapter():
        plain = greedy_tokens(theirs, PROMPT, 8)
    assert [list(each.outputs[0].token_ids) for each in outputs] == [adapted, plain, adapted]
