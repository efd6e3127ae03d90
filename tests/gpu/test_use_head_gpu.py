"""Another head on a GPU: graphs are captured again, the old head's memory is free, tokens stay."""

import torch
from support.heads import write_head
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.models.model_config import read_config

PROMPTS = [{"prompt_token_ids": [3 + row, 4, 5, 3 + row, 4]} for row in range(4)]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)


def run(llm: LLM) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """The answers, and which drafts were accepted."""
    outputs = [each.outputs[0] for each in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    kept = [each.acceptance.kept_per_position for each in outputs]
    return [tuple(each.token_ids) for each in outputs], kept


def test_answers_stay_and_memory_does_not_grow(tmp_path):
    empty = torch.cuda.memory_allocated()  # what other tests of this process still hold
    folder = tmp_path / "target"
    save_tiny("llama", folder)
    heads = [
        str(write_head(tmp_path / f"head-{seed}", read_config(folder), seed=seed))
        for seed in (0, 1)
    ]
    llm = LLM(
        folder, draft=heads[0], adaptive=False, device="cuda", kv_tokens=2**16, max_num_seqs=4
    )
    before = run(llm)
    held = torch.cuda.memory_allocated() - empty
    for _ in range(2):
        llm._engine.use_head(heads[1])
        other = run(llm)
        llm._engine.use_head(heads[0])
        assert other[0] == before[0]
        assert other[1] != before[1]
        assert run(llm) == before
        assert torch.cuda.memory_allocated() - empty <= 1.02 * held
    llm.sleep(1)  # the new head's weights leave the device, too
    assert torch.cuda.memory_allocated() - empty < 0.1 * held
    llm.wake_up()
    assert run(llm) == before
