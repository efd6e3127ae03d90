"""Images in prompts: the tokens of transformers, whatever drafts, chunks, batches and caches do."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file
from support.heads import write_head
from support.tiny_qwen_vl import make_tiny_qwen_vl
from support.tiny_vision import data_url, make_tiny_vision, picture

from outrider import LLM, SamplingParams
from outrider.cli.model_flags import ModelFlags
from outrider.config.draft_config import NO_DRAFT
from outrider.errors import ConfigError, RequestError
from outrider.frontend.call_cost import MAX_IMAGE_BYTES, CallLimits, PromptRequest
from outrider.frontend.images.image_limits import ImageLimits
from outrider.frontend.prompts import parse_prompt
from outrider.models.model_config import read_config
from outrider.models.vision.idefics3_tower import Idefics3Tower
from outrider.models.vision.qwen2_5_vl_tower import Qwen2_5VLTower
from outrider.step import planner
from outrider.step.row_table import RowTable
from outrider.wire.image_span import ImageSpan

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
WIDE, SMALL, TALL = picture(1, 30, 20), picture(2, 10, 12), picture(3, 16, 40)
PROMPTS = {  # @ is the placeholder of an image
    "middle": ("see @ now", [WIDE]),
    "three": ("@x@ y@z", [WIDE, SMALL, TALL]),
    "text": ("plain", []),
    "first": ("@abcabcabc", [SMALL]),
}


class Seeing:
    """A tiny model of a family that reads images, and what transformers answers."""

    def __init__(self, tiny, placeholder):
        self.folder = tiny.folder
        self.placeholder = placeholder
        self._tiny = tiny

    def spelled(self, text):
        return text.replace("@", self.placeholder)

    def reference(self, text, images, **more):
        return self._tiny.reference(self.spelled(text), images, **more)

    def prompt(self, text, images):
        spelled = self.spelled(text)
        return {"prompt": spelled, "multi_modal_data": {"image": images}} if images else spelled

    def load(self, **more):
        """Chunks of 14 tokens end inside of images."""
        usual = {"draft": "none", "block_size": 4, "max_num_batched_tokens": 14, "max_num_seqs": 4}
        sizes = {"dtype": "float32", "device": "cpu", "max_model_len": 160, "kv_tokens": 640}
        return LLM(self.folder, **{**usual, **sizes, **more})

    def answers(self, llm, prompts=PROMPTS):
        """Prompt and answer of each, all in one batch."""
        given = [self.prompt(*prompt) for prompt in prompts.values()]
        outputs = llm.generate(given, PARAMS, use_tqdm=False)
        return {
            name: (each.prompt_token_ids, each.outputs[0].token_ids)
            for name, each in zip(prompts, outputs, strict=True)
        }


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory):
    return Seeing(make_tiny_vision(tmp_path_factory.mktemp("smolvlm")), "<image>")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return Seeing(make_tiny_qwen_vl(tmp_path_factory.mktemp("qwen")), "<|image_pad|>")


@pytest.fixture(scope="module")
def families(smolvlm, qwen):
    return {"smolvlm": smolvlm, "qwen": qwen}


@pytest.fixture(scope="module")
def references(families):
    return {
        family: {name: seeing.reference(*prompt) for name, prompt in PROMPTS.items()}
        for family, seeing in families.items()
    }


@pytest.fixture(scope="module")
def llm(smolvlm):
    return smolvlm.load()


@pytest.mark.parametrize("family", ["smolvlm", "qwen"])
def test_images_give_the_tokens_of_transformers_cold_and_cached(families, references, family):
    seeing = families[family]
    llm = seeing.load()
    assert seeing.answers(llm) == references[family]
    assert seeing.answers(llm) == references[family]


def test_a_conversation_has_its_images_where_the_template_writes_them(llm, smolvlm):
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image", "image": WIDE},
        {"type": "text", "text": " and "},
        {"type": "image_url", "image_url": {"url": data_url(SMALL)}},
    ]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}]
    (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
    text = "user: see @ and @<end_of_utterance>\nassistant: ok<end_of_utterance>\nassistant:"
    wanted = smolvlm.reference(text, [WIDE, SMALL])
    assert (output.prompt_token_ids, output.outputs[0].token_ids) == wanted


def test_a_prefix_is_shared_by_equal_images_alone(llm, smolvlm):
    """The texts are equal, and so are the sizes of the images."""
    first, other = picture(4, 10, 12), picture(5, 10, 12)
    for image, num_cached in ((first, 0), (other, 4), (first, 40), (other, 40)):
        prompt = ("wxyz@efgh", [image])
        (output,) = llm.generate(smolvlm.prompt(*prompt), PARAMS, use_tqdm=False)
        assert output.usage.cached_tokens == num_cached
        assert output.outputs[0].token_ids == smolvlm.reference(*prompt)[1]


@pytest.mark.slow
def test_every_command_that_loads_a_model_has_the_flags_for_images(smolvlm, tmp_path):
    """Errors name these flags, and lines of `generate --input` have images, too."""
    SMALL.save(tmp_path / "a.png")
    flags = ModelFlags(
        model=str(smolvlm.folder),
        device="cpu",
        dtype="float32",
        limit_mm_per_prompt="image=1",
        allowed_local_media_path=str(tmp_path),
    )
    assert flags.choice().image_limits == ImageLimits(per_prompt=1, allowed_path=str(tmp_path))
    part = {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/a.png"}}
    llm = flags.load(NO_DRAFT)
    (output,) = llm.chat([{"role": "user", "content": [part]}], PARAMS, use_tqdm=False)
    text = "user: @<end_of_utterance>\nassistant:"
    assert output.outputs[0].token_ids == smolvlm.reference(text, [SMALL])[1]
    with pytest.raises(RequestError, match="--limit-mm-per-prompt image=2"):
        llm.chat([{"role": "user", "content": [part] * 2}], PARAMS, use_tqdm=False)


def test_an_image_takes_a_bound_of_memory_until_it_is_resized(llm, smolvlm):
    """Else a server holds a few images at a time, however small they are."""
    prompt, costs = parse_prompt(smolvlm.prompt("ab@", [SMALL])), []
    requests = [PromptRequest(prompt=prompt, params=replace(PARAMS, n=3))]
    inputs = llm.frontend.inputs
    (prepared,) = inputs.prepare_call(requests, CallLimits(outputs=3), costs.append)
    pixels = sum(len(each.pixels.values) for each in prepared.images)
    assert [each.image_bytes for each in costs] == [MAX_IMAGE_BYTES, 3 * pixels]
    assert costs[1].num_bytes < costs[0].num_bytes


def test_long_images_beside_each_other_run_the_tower_once(qwen, monkeypatch):
    """Their prompts share steps of 14 tokens, and the device keeps embeddings of as many."""
    prompts = {str(seed): (f"{'abc'[seed]}@xy", [picture(seed, 40, 40)]) for seed in range(3)}
    num_runs, encode = [], Qwen2_5VLTower.encode

    def counted(self, pixels):
        num_runs.append(pixels.num_tokens)
        return encode(self, pixels)

    llm = qwen.load()
    monkeypatch.setattr(Qwen2_5VLTower, "encode", counted)
    assert qwen.answers(llm, prompts) == {
        name: qwen.reference(*prompt) for name, prompt in prompts.items()
    }
    assert num_runs == [25] * 3


def test_a_cached_image_needs_no_vision_tower(llm, smolvlm, monkeypatch):
    prompts = {"a": ("ab@cd", [picture(6, 10, 12)])}
    wanted = smolvlm.answers(llm, prompts)
    monkeypatch.setattr(Idefics3Tower, "encode", None)
    assert smolvlm.answers(llm, prompts) == wanted


@pytest.mark.slow
def test_an_image_hash_that_is_ignored_is_noticed(smolvlm, monkeypatch):
    """A mistake, put back: the prefix cache knows images by the places of their embeddings."""
    monkeypatch.setattr(ImageSpan, "row", lambda self, index: bytes([self.skipped + index]))
    llm, prompts = smolvlm.load(), [("ab@cd", [picture(seed, 10, 12)]) for seed in (7, 8)]
    for prompt, is_right in zip(prompts, (True, False), strict=True):
        wanted = smolvlm.reference(*prompt)
        assert (smolvlm.answers(llm, {"a": prompt})["a"] == wanted) is is_right


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["none", "in chunks", "of rows"])
def test_positions_without_their_axes_are_noticed(qwen, references, monkeypatch, mistake):
    """Mistakes, put back: rotary positions count tokens, in prompts or after them."""
    if mistake == "in chunks":
        shifts = planner.chunk_shifts
        monkeypatch.setattr(planner, "chunk_shifts", lambda chunks, size: 0 * shifts(chunks, size))
    admit = RowTable.admit

    def admit_unshifted(self, admissions):
        admit(self, admissions)
        self.shifts.zero_()

    if mistake == "of rows":
        monkeypatch.setattr(RowTable, "admit", admit_unshifted)
    answers = qwen.answers(qwen.load())
    assert answers["text"] == references["qwen"]["text"]
    assert (answers == references["qwen"]) is (mistake == "none")


DRAFTS = {
    "ngram": {"draft": "ngram"},
    "tree": {"draft": "ngram", "topk": 2, "nodes": 6, "steps": 3},
    "eagle3": {"topk": 2, "nodes": 5, "steps": 3},
}
CASES = [
    ("smolvlm", "ngram", "tape"),
    ("qwen", "tree", "tape"),
    ("qwen", "eagle3", "tape"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "draft", "executor"), CASES)
def test_drafts_change_no_token_after_images(
    families, references, tmp_path, family, draft, executor
):
    seeing, more = families[family], DRAFTS[draft]
    if draft == "eagle3":
        write_head(tmp_path / "head", read_config(seeing.folder), algorithm="eagle3")
        more = {**more, "draft": tmp_path / "head"}
    llm = seeing.load(executor=executor, adaptive=False, max_num_batched_tokens=46, **more)
    for _ in range(3):  # the tape replays shapes that it has seen
        assert seeing.answers(llm) == references[family]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["smolvlm", "qwen"])
def test_a_preempted_request_keeps_its_images(families, family):
    seeing = families[family]
    prompt = {"smolvlm": PROMPTS["first"], "qwen": ("@a@b@c@abcabcabc", [WIDE] * 4)}[family]
    llm = seeing.load(kv_tokens=200, enable_prefix_caching=False)
    long = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate([seeing.prompt(*prompt)] * 3, long, use_tqdm=False)
    wanted = seeing.reference(*prompt, max_tokens=40)[1]
    assert [each.outputs[0].token_ids for each in outputs] == [wanted] * 3
    assert sum(each.timing.preemptions for each in outputs) > 0


@pytest.mark.slow
def test_published_folders_of_qwen_have_other_names(qwen, references, tmp_path):
    """A flat config.json, `visual.` and `model.` before tensors; sections as a kind of scaling."""
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((qwen.folder / name).read_bytes())
    fields = json.loads((qwen.folder / "config.json").read_text())
    inner = fields.pop("text_config")
    rope = inner.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps({**inner, **flat, **fields}))
    tensors = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): each
        for name, each in load_file(qwen.folder / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    published = Seeing(qwen._tiny, qwen.placeholder)
    published.folder = tmp_path
    assert published.answers(published.load()) == references["qwen"]
    tensors.pop("visual.blocks.0.norm1.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lacks tensors \(1\): visual.blocks.0.norm1.weight"):
        published.load()


@pytest.mark.slow
def test_smolvlm2_has_another_name_for_the_same_model(smolvlm, references, tmp_path):
    for path in smolvlm.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    fields = json.loads((tmp_path / "config.json").read_text())
    fields |= {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm"}
    fields["vision_config"]["model_type"] = "smolvlm_vision"
    (tmp_path / "config.json").write_text(json.dumps(fields))
    other = Seeing(smolvlm._tiny, smolvlm.placeholder)
    other.folder = tmp_path
    assert other.answers(other.load()) == references["smolvlm"]


@pytest.mark.slow
def test_every_rank_encodes_images_for_itself(qwen, references):
    assert qwen.answers(qwen.load(tensor_parallel_size=2)) == references["qwen"]


@pytest.mark.slow
def test_an_image_processor_of_another_model_is_refused_at_load(qwen, tmp_path):
    for path in qwen.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    fields = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**fields, "patch_size": 8}))
    with pytest.raises(ConfigError, match=r"cuts patches of \(8, 2, 2\)"):
        LLM(tmp_path, draft="none", dtype="float32", device="cpu", max_model_len=64)
