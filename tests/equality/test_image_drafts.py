"""Drafters beside images: families, drafters, executors and chunks change no token."""

import shutil
from dataclasses import replace
from functools import cache

import pytest
import torch
from support.heads import write_head
from support.seeing import PARAMS, PROMPTS, SMALL, WIDE, Seeing, answers_of, logprobs_of
from support.tiny import save_tiny
from support.tiny_qwen_vl import (
    make_tiny_qwen3_5,
    make_tiny_qwen3_vl,
    make_tiny_qwen3_vl_moe,
    make_tiny_qwen_vl,
)
from support.tiny_vision import make_tiny_vision, picture

from outrider.models.model_config import read_config
from outrider.step.input_embeds import EmbedsBuffer

MAKE = {
    "smolvlm": make_tiny_vision,
    "qwen2.5-vl": make_tiny_qwen_vl,
    "qwen3-vl": make_tiny_qwen3_vl,
    "qwen3-vl-moe": make_tiny_qwen3_vl_moe,
    "qwen3.5": make_tiny_qwen3_5,
}
DRAFTERS = ["none", "ngram", "suffix", "eagle3", "model"]
TREES_ONLY = ["eagle3+suffix"]
CHAINS = ("qwen3.5",)  # recurrent layers take no trees; there is a draft module
PAIRS = [
    (family, drafter)
    for family in MAKE
    for drafter in (*DRAFTERS, *(["mtp"] if family in CHAINS else TREES_ONLY))
]
NODES = 5
# Those of a step beside the trees of all rows. Images have up to 25 tokens, so chunks cut them.
CHUNKS = [1, 7, 26]


class SeeingFamily:
    """A model, what drafts for it, and its right answers."""

    def __init__(self, family, root):
        placeholder = "<image>" if family == "smolvlm" else "<|image_pad|>"
        self.seeing = Seeing(MAKE[family](root / "target"), placeholder)
        self.right = {name: self.seeing.reference(*each) for name, each in PROMPTS.items()}
        self.has_trees = family not in CHAINS
        write_head(root / "head", read_config(root / "target"), algorithm="eagle3")
        save_tiny("llama", root / "model")  # reads image tokens as any other
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(root / "target" / name, root / "model" / name)
        self._root = root

    def load(self, drafter, *, chunk, **more):
        kind, plus, lookup = drafter.partition("+")
        paths = {"eagle3": self._root / "head", "model": self._root / "model"}
        tree = {"topk": 2, "nodes": NODES, "steps": 3} if self.has_trees else {"steps": NODES - 1}
        sizes = {} if drafter == "none" else tree
        return self.seeing.load(
            draft=f"{paths.get(kind, kind)}{plus}{lookup}",
            adaptive=False,
            max_num_batched_tokens=4 * (NODES if drafter != "none" else 1) + chunk,
            **sizes,
            **more,
        )


@pytest.fixture(scope="module")
def family_of(tmp_path_factory):
    return cache(lambda family: SeeingFamily(family, tmp_path_factory.mktemp("seeing")))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("family", "drafter"), PAIRS)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_drafts_change_no_token_after_images(family_of, family, drafter, executor, depth, chunk):
    """Several images, a text and images in the middle, in one batch: cold, cached, replayed."""
    made = family_of(family)
    llm = made.load(drafter, chunk=chunk, executor=executor, depth=depth)
    for _ in range(3):
        outputs = made.seeing.outputs(llm)
        assert answers_of(outputs) == made.right
        drafted = sum(each.outputs[0].acceptance.drafted for each in outputs.values())
        assert (drafted > 0) is (drafter != "none")
    assert not llm._engine.num_drafter_failures  # a drafter that is given up changes no token
    counts = llm._engine.stats.work.counts
    assert (counts.eager < counts.steps) is (executor == "tape")  # some were replayed


@pytest.mark.slow
@pytest.mark.parametrize("family", MAKE)
def test_logprobs_after_images_are_those_of_transformers(family_of, family):
    made = family_of(family)
    llm = made.load("eagle3", chunk=7, executor="tape")
    for _ in range(2):
        outputs = made.seeing.outputs(llm, params=replace(PARAMS, logprobs=0))
        for name, prompt in PROMPTS.items():
            right = made.seeing.scored(*prompt)
            assert outputs[name].outputs[0].token_ids == right[1]
            assert logprobs_of(outputs[name]) == pytest.approx(right[2], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "drafter"),
    list(zip(MAKE, ["eagle3+suffix", "eagle3", "model", "ngram", "mtp"], strict=True)),
)
def test_drafts_change_no_sampled_token_after_images(family_of, family, drafter):
    """Nor its log-probability."""
    made, found = family_of(family), []
    sampled = replace(PARAMS, temperature=0.9, top_p=0.95, seed=5, logprobs=1)
    for each, depth in (("none", 0), (drafter, 1)):
        llm = made.load(each, chunk=7, executor="tape", depth=depth)
        passes = [made.seeing.outputs(llm, params=sampled) for _ in range(2)]
        found.append([[one[name].outputs[0] for name in PROMPTS] for one in passes])
    tokens, logprobs = (
        [[[getattr(one, field) for one in outputs] for outputs in passes] for passes in found]
        for field in ("token_ids", "logprobs")
    )
    assert tokens[0] == tokens[1]
    assert logprobs[0] == logprobs[1]


LONG = ("@" + "abcdefghij" * 3 + "@" + "klmno" * 7, [WIDE, SMALL])


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "ngram", "eagle3", "mtp"])
def test_a_prompt_with_images_continues_from_a_snapshot_of_row_state(family_of, drafter):
    """Snapshots are 32 tokens apart at least, and other prompts here have up to 24."""
    made = family_of("qwen3.5")
    prompt, right = made.seeing.reference(*LONG)
    assert len(prompt) >= 70
    llm, cached = made.load(drafter, chunk=26, executor="tape"), []
    for text, images in (LONG, LONG, (LONG[0] + "xyz", LONG[1])):
        (output,) = llm.generate(made.seeing.prompt(text, images), PARAMS, use_tqdm=False)
        assert output.outputs[0].token_ids == made.seeing.reference(text, images)[1]
        cached.append(output.usage.cached_tokens)
    assert cached[0] == 0
    assert min(cached[1:]) >= 64, cached
    other = made.seeing.reference(LONG[0], [SMALL, WIDE])[1]
    (output,) = llm.generate(made.seeing.prompt(LONG[0], [SMALL, WIDE]), PARAMS, use_tqdm=False)
    assert output.outputs[0].token_ids == other
    assert right != other


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3-vl", "qwen3.5"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "eagle3"])
def test_images_embeddings_and_tokens_share_steps(family_of, family, drafter):
    """Each row of a step begins in its own way; none reads the inputs of another."""
    made = family_of(family)
    llm = made.load(drafter, chunk=11, executor="tape", enable_prompt_embeds=True)
    texts = {"words": "other words abc", "more": "cab cab"}
    ids = {name: made.seeing.reference(text, []) for name, text in texts.items()}
    embed = made.seeing._tiny.theirs.get_input_embeddings()
    given = [
        made.seeing.prompt(*PROMPTS["three"]),
        {"prompt_embeds": embed(torch.tensor(ids["words"][0])).data * 1.0001},  # no token's
        texts["more"],
        made.seeing.prompt(*PROMPTS["first"]),
    ]
    right = [made.right["three"][1], ids["words"][1], ids["more"][1], made.right["first"][1]]
    for _ in range(3):
        outputs = llm.generate(given, PARAMS, use_tqdm=False)
        assert [each.outputs[0].token_ids for each in outputs] == right


@pytest.mark.slow
@pytest.mark.parametrize("family", ["smolvlm", "qwen3.5"])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_stale_image_is_noticed(family_of, monkeypatch, family, drafter):
    """A mistake, put back: a capture reads the image of an earlier prompt."""
    stage, staged = EmbedsBuffer.stage, set()

    def once(self, chunks, shape):
        if shape not in staged:
            staged.add(shape)
            stage(self, chunks, shape)

    made = family_of(family)
    llm = made.load(drafter, chunk=60, executor="tape", enable_prefix_caching=False)
    monkeypatch.setattr(EmbedsBuffer, "stage", once)
    found = []
    for image in (SMALL, picture(8, 10, 12)):  # of one size
        right = made.seeing.reference("ab@cd", [image])
        found.append(made.seeing.answers(llm, {"a": ("ab@cd", [image])})["a"] == right)
    assert found == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3-vl", "qwen3.5"])
def test_a_preempted_request_keeps_its_images_beside_drafts(family_of, family):
    made = family_of(family)
    prompt = ("@a@b@c@abcabcabc", [WIDE] * 4)
    llm = made.load("ngram", chunk=14, kv_tokens=224, enable_prefix_caching=False)
    long = replace(PARAMS, max_tokens=40)
    outputs = llm.generate([made.seeing.prompt(*prompt)] * 3, long, use_tqdm=False)
    right = made.seeing.reference(*prompt, max_tokens=40)[1]
    assert [each.outputs[0].token_ids for each in outputs] == [right] * 3
    assert sum(each.timing.preemptions for each in outputs) > 0
