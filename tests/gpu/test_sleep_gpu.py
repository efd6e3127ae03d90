"""Sleep on a GPU: weights leave the device, come back elsewhere, and graphs are captured again."""

import pytest
import torch
from support.heads import write_head
from support.modules import write_mimo
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.models.model_config import read_config

PROMPTS = [{"prompt_token_ids": [3 + row, 4, 5, 3 + row, 4]} for row in range(4)]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("drafter", ["none", "ngram", "model", "eagle3", "mtp"])
def test_answers_are_the_same_and_the_memory_is_free_between(tmp_path, drafter, level):
    folder, draft = tmp_path / "target", drafter
    if drafter == "mtp":
        folder.mkdir()
        write_mimo(folder)
    else:
        save_tiny("llama", folder)
    if drafter == "model":
        save_tiny("llama", tmp_path / "draft", disturbance=0.02)
        draft = str(tmp_path / "draft")
    elif drafter == "eagle3":
        draft = str(write_head(tmp_path / "draft", read_config(folder), algorithm=drafter))
    empty = torch.cuda.memory_allocated()
    llm = LLM(folder, draft=draft, adaptive=False, device="cuda", kv_tokens=2**18, max_num_seqs=4)
    before = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    full = torch.cuda.memory_allocated()
    for _ in range(2):
        llm.sleep(level)
        assert torch.cuda.memory_allocated() - empty < 0.1 * (full - empty)
        llm.wake_up()
        after = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [each.outputs[0].token_ids for each in after] == [
            each.outputs[0].token_ids for each in before
        ]
