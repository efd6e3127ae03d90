"""DeepSeek-V4 in the real engine: speculation, padding, chunks and executors change no token."""

from support.row_equality import RowEquality
from support.tiny import save_tiny
from support.v4 import C, H, prompt, tiny_v4

from outrider import LLM, SamplingParams
from outrider.config.draft_config import DraftConfig


class TestV4(RowEquality):
    """Of a tiny model with every kind of layer."""


def test_a_whole_model_drafts_for_one_with_blocks_of_128(tmp_path):
    """Blocks of the real size make pages of 128, which the draft's usual attention has to take."""
    tiny_v4(compress_rates={C: 4, H: 128}, max_position_embeddings=512).save_pretrained(
        tmp_path / "target"
    )
    save_tiny("llama", tmp_path / "draft")
    asked = [{"prompt_token_ids": prompt(length, seed=length)} for length in (250, 40)]
    greedy = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
    said = []
    for drafter in ("none", str(tmp_path / "draft")):
        draft = DraftConfig(drafter=drafter, adaptive=False)
        llm = LLM(
            tmp_path / "target",
            draft=draft,
            adaptive=False,
            device="cpu",
            max_model_len=300,
            max_num_seqs=2,
        )
        outputs = llm.generate(asked, greedy, use_tqdm=False)
        said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]
    assert all(output.outputs[0].acceptance.drafted for output in outputs)
