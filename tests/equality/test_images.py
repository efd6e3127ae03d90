"""Images in prompts: the tokens of transformers, whatever drafts, chunks, batches and caches do."""

import pytest
from support.heads import write_head
from support.tiny_vision import data_url, make_tiny_vision, picture

from outrider import LLM, SamplingParams
from outrider.models.model_config import read_config
from outrider.models.vision.idefics3_tower import Idefics3Tower
from outrider.wire.image_span import ImageSpan

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
WIDE, SMALL, TALL = picture(1, 30, 20), picture(2, 10, 12), picture(3, 16, 40)
PROMPTS = {
    "middle": ("see <image> now", [WIDE]),
    "three": ("<image>x<image> y<image>z", [WIDE, SMALL, TALL]),
    "text": ("plain", []),
    "first": ("<image>abcabcabc", [SMALL]),
}


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    return make_tiny_vision(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def references(vision):
    return {name: vision.reference(*prompt) for name, prompt in PROMPTS.items()}


@pytest.fixture(scope="module")
def llm(vision):
    return load(vision)


def load(vision, **more):
    """Chunks of 14 tokens end inside of tiles, which have 4."""
    usual = {"draft": "none", "block_size": 4, "max_num_batched_tokens": 14, "max_num_seqs": 4}
    sizes = {"dtype": "float32", "device": "cpu", "max_model_len": 160, "kv_tokens": 640}
    return LLM(vision.folder, **{**usual, **sizes, **more})


def prompt_of(text, images):
    return {"prompt": text, "multi_modal_data": {"image": images}} if images else text


def answers(llm, prompts=PROMPTS):
    """Prompt and answer of each, all in one batch."""
    given = [prompt_of(*prompt) for prompt in prompts.values()]
    outputs = llm.generate(given, PARAMS, use_tqdm=False)
    return {
        name: (each.prompt_token_ids, each.outputs[0].token_ids)
        for name, each in zip(prompts, outputs, strict=True)
    }


def test_images_give_the_tokens_of_transformers_cold_and_cached(llm, references):
    assert answers(llm) == references
    assert answers(llm) == references


def test_a_conversation_has_its_images_where_the_template_writes_them(llm, vision):
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image", "image": WIDE},
        {"type": "text", "text": " and "},
        {"type": "image_url", "image_url": {"url": data_url(SMALL)}},
    ]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}]
    (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
    text = "user: see <image> and <image><end_of_utterance>\n"
    text += "assistant: ok<end_of_utterance>\nassistant:"
    wanted = vision.reference(text, [WIDE, SMALL])
    assert (output.prompt_token_ids, output.outputs[0].token_ids) == wanted


def test_a_prefix_is_shared_by_equal_images_alone(llm, vision):
    """The texts are equal, and so are the sizes of the images."""
    llm._engine.flush()
    first, other = picture(4, 10, 12), picture(5, 10, 12)
    for image, num_cached in ((first, 0), (other, 4), (first, 40), (other, 40)):
        (output,) = llm.generate(prompt_of("abcd<image>efgh", [image]), PARAMS, use_tqdm=False)
        assert output.usage.cached_tokens == num_cached
        assert output.outputs[0].token_ids == vision.reference("abcd<image>efgh", [image])[1]


def test_a_cached_image_needs_no_vision_tower(llm, vision, monkeypatch):
    image = picture(6, 10, 12)
    prompts = {"a": ("ab<image>cd", [image])}
    wanted = answers(llm, prompts)
    monkeypatch.setattr(Idefics3Tower, "encode", None)
    assert answers(llm, prompts) == wanted


@pytest.mark.slow
def test_an_image_hash_that_is_ignored_is_noticed(vision, monkeypatch):
    """A mistake, put back: the prefix cache knows images by the places of their embeddings."""
    monkeypatch.setattr(ImageSpan, "row", lambda self, index: bytes([self.skipped + index]))
    llm, prompts = load(vision), [("ab<image>cd", [picture(seed, 10, 12)]) for seed in (7, 8)]
    for prompt, is_right in zip(prompts, (True, False), strict=True):
        wanted = vision.reference(*prompt)
        assert (answers(llm, {"a": prompt})["a"] == wanted) is is_right


DRAFTS = {
    "ngram": {"draft": "ngram"},
    "tree": {"draft": "ngram", "topk": 2, "nodes": 6, "steps": 3},
    "eagle3": {"topk": 2, "nodes": 5, "steps": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_drafts_change_no_token_after_images(vision, references, tmp_path, draft, executor):
    more = DRAFTS[draft]
    if draft == "eagle3":
        write_head(tmp_path / "head", read_config(vision.folder), algorithm="eagle3")
        more = {**more, "draft": tmp_path / "head"}
    llm = load(vision, executor=executor, adaptive=False, max_num_batched_tokens=46, **more)
    for _ in range(3):  # the tape replays shapes that it has seen
        assert answers(llm) == references


@pytest.mark.slow
def test_a_preempted_request_keeps_its_images(vision):
    llm = load(vision, kv_tokens=200, enable_prefix_caching=False)
    long = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate([prompt_of(*PROMPTS["first"])] * 3, long, use_tqdm=False)
    wanted = vision.reference(*PROMPTS["first"], max_tokens=40)[1]
    assert [each.outputs[0].token_ids for each in outputs] == [wanted] * 3
    assert sum(each.timing.preemptions for each in outputs) > 0
