"""Images on a GPU: eager steps and graphs, with drafts, have the tokens of transformers."""

import pytest

pytest.importorskip("PIL")  # the vision extra; transformers is there for other tests

from support.tiny_qwen_vl import make_tiny_qwen3_vl, make_tiny_qwen_vl
from support.tiny_vision import make_tiny_vision, picture

from outrider import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
IMAGES = [picture(1, 30, 20), picture(2, 10, 12)]
FAMILIES = {
    "smolvlm": ("<image>", make_tiny_vision),
    "qwen2.5-vl": ("<|image_pad|>", make_tiny_qwen_vl),
    "qwen3-vl": ("<|image_pad|>", make_tiny_qwen3_vl),
}


@pytest.mark.parametrize("draft", ["none", "ngram"])
@pytest.mark.parametrize("executor", ["eager", "graph"])
@pytest.mark.parametrize("family", FAMILIES)
def test_images_give_the_tokens_of_transformers(tmp_path, family, executor, draft):
    placeholder, make = FAMILIES[family]
    tiny = make(tmp_path)
    text = f"{placeholder}abcabc{placeholder} ab"
    wanted = tiny.reference(text, IMAGES)
    llm = LLM(
        tmp_path,
        draft=draft,
        adaptive=False,
        dtype="float32",
        device="cuda",
        executor=executor,
        max_model_len=160,
        max_num_seqs=4,
        max_num_batched_tokens=46,
        kv_tokens=2048,
    )
    prompt = {"prompt": text, "multi_modal_data": {"image": IMAGES}}
    for _ in range(4):  # shapes are captured, then replayed; prefixes are cold, then cached
        for output in llm.generate([prompt] * 2, PARAMS, use_tqdm=False):
            assert (output.prompt_token_ids, output.outputs[0].token_ids) == wanted


@pytest.mark.parametrize("make", [make_tiny_qwen_vl, make_tiny_qwen3_vl])
def test_long_images_beside_each_other_wait_on_the_host(tmp_path, make):
    """Their prompts share steps of 14 tokens, and the device keeps embeddings of as many."""
    tiny = make(tmp_path)
    prompts = [
        (f"{letter}<|image_pad|>xy", [picture(at, 40, 40)]) for at, letter in enumerate("abc")
    ]
    llm = LLM(
        tmp_path,
        draft="none",
        dtype="float32",
        device="cuda",
        max_model_len=160,
        max_num_seqs=4,
        max_num_batched_tokens=14,
        kv_tokens=2048,
    )
    given = [{"prompt": text, "multi_modal_data": {"image": images}} for text, images in prompts]
    outputs = llm.generate(given, PARAMS, use_tqdm=False)
    answers = [(each.prompt_token_ids, each.outputs[0].token_ids) for each in outputs]
    assert answers == [tiny.reference(*prompt) for prompt in prompts]
