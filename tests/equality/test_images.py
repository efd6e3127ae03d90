"""Images in prompts: the tokens of transformers, whatever drafts, chunks, batches and caches do."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.seeing import PARAMS, PROMPTS, SMALL, WIDE, Seeing
from support.tiny_qwen_vl import (
    make_tiny_qwen3_5,
    make_tiny_qwen3_vl,
    make_tiny_qwen3_vl_moe,
    make_tiny_qwen_vl,
)
from support.tiny_vision import data_url, make_tiny_vision, picture
from transformers import AutoModelForImageTextToText

from outrider import LLM, SamplingParams
from outrider.cli.model_flags import ModelFlags
from outrider.config.draft_config import NO_DRAFT
from outrider.errors import ConfigError, RequestError
from outrider.frontend.call_cost import MAX_IMAGE_BYTES, CallLimits, PromptRequest
from outrider.frontend.images.image_limits import ImageLimits
from outrider.frontend.images.image_processor import load_processor
from outrider.frontend.images.qwen_vl_processor import QwenVLProcessor
from outrider.frontend.prompts import parse_prompt
from outrider.hub.vision_config import read_vision
from outrider.models.decoder import Deepstack
from outrider.models.vision.idefics3_tower import Idefics3Tower
from outrider.models.vision.qwen_vl_tower import QwenVLTower
from outrider.models.vision.vision_tower import load_tower
from outrider.step import planner
from outrider.step.input_embeds import EmbedsBuffer
from outrider.step.row_table import RowTable
from outrider.wire.image_span import ImageSpan


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory):
    return Seeing(make_tiny_vision(tmp_path_factory.mktemp("smolvlm")), "<image>")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return Seeing(make_tiny_qwen_vl(tmp_path_factory.mktemp("qwen")), "<|image_pad|>")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return Seeing(make_tiny_qwen3_vl(tmp_path_factory.mktemp("qwen3")), "<|image_pad|>")


@pytest.fixture(scope="module")
def families(smolvlm, qwen, qwen3):
    return {"smolvlm": smolvlm, "qwen": qwen, "qwen3": qwen3}


@pytest.fixture(scope="module")
def references(families):
    return {
        family: {name: seeing.reference(*prompt) for name, prompt in PROMPTS.items()}
        for family, seeing in families.items()
    }


@pytest.fixture(scope="module")
def llm(smolvlm):
    return smolvlm.load()


@pytest.mark.parametrize("family", ["smolvlm", "qwen", "qwen3"])
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
    num_runs, encode = [], QwenVLTower.encode

    def counted(self, pixels):
        num_runs.append(pixels.num_tokens)
        return encode(self, pixels)

    llm = qwen.load()
    monkeypatch.setattr(QwenVLTower, "encode", counted)
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


@pytest.mark.parametrize("family", ["qwen", "qwen3"])
def test_a_tower_in_bfloat16_has_the_angles_of_float32(families, family):
    """Rounded with the weights, frequencies would be wrong by whole patches in large images."""
    seeing = families[family]
    tower = load_tower(seeing.folder, dtype=torch.bfloat16, device=torch.device("cpu"))
    theirs = AutoModelForImageTextToText.from_pretrained(seeing.folder, dtype=torch.bfloat16)
    processed = QwenVLProcessor.load(seeing.folder).process(picture(9, 40, 40))
    (pixels,) = processed.tiles
    cut = seeing._tiny.images(images=[picture(9, 40, 40)], return_tensors="pt")
    with torch.inference_mode():
        wanted = theirs.model.visual(
            cut["pixel_values"].bfloat16(), grid_thw=cut["image_grid_thw"]
        ).pooler_output
    assert torch.equal(tower.encode(pixels)[:, : wanted.shape[1]], wanted)


@pytest.mark.parametrize("mistake", ["none", "no deepstack", "one layer late", "stale"])
def test_deepstack_that_is_wrong_is_noticed(qwen3, references, monkeypatch, mistake):
    """Mistakes, put back. A prompt of embeddings runs where the image of another one was."""
    add, send = Deepstack.add_, EmbedsBuffer._send
    if mistake == "no deepstack":
        monkeypatch.setattr(Deepstack, "add_", lambda self, stream, depth: None)
    if mistake == "one layer late":
        late = lambda self, stream, depth: add(self, stream, depth=depth - 1)  # noqa: E731
        monkeypatch.setattr(Deepstack, "add_", late)
    if mistake == "stale":
        monkeypatch.setattr(
            EmbedsBuffer, "_send", lambda self, span, to: send(self, span, to[:, : span.width])
        )
    llm = qwen3.load(max_num_batched_tokens=90, enable_prompt_embeds=True)
    prompts = {name: PROMPTS[name] for name in ("three", "text")}
    answers = qwen3.answers(llm, prompts)
    ids, wanted = qwen3.reference("other words", [])
    embeds = qwen3._tiny.theirs.get_input_embeddings()(torch.tensor(ids)).data
    near = {"prompt_embeds": embeds * 1.0001}  # equal ones would run as tokens
    (output,) = llm.generate(near, PARAMS, use_tqdm=False)
    assert answers["text"] == references["qwen3"]["text"]
    is_right = answers == {name: references["qwen3"][name] for name in prompts}
    assert is_right is (mistake in ("none", "stale"))
    assert (output.outputs[0].token_ids == wanted) is (mistake != "stale")


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


def test_without_images_no_tower_is_loaded(qwen3, references, tmp_path):
    """Neither its tensors nor the image processor is needed."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((qwen3.folder / name).read_bytes())
    tensors = load_file(qwen3.folder / "model.safetensors")
    text = {name: each for name, each in tensors.items() if ".visual." not in name}
    save_file(text, tmp_path / "model.safetensors")
    blind = Seeing(qwen3._tiny, qwen3.placeholder)
    blind.folder = tmp_path
    llm = blind.load(limit_mm_per_prompt={"image": 0})
    answers = blind.answers(llm, {"text": PROMPTS["text"]})
    assert answers["text"] == references["qwen3"]["text"]
    with pytest.raises(RequestError, match=r"or raise --limit-mm-per-prompt image=1"):
        blind.answers(llm, {"middle": PROMPTS["middle"]})


def test_qwen3_5_reads_texts_alone_without_an_image_processor(tmp_path):
    seeing = Seeing(make_tiny_qwen3_5(tmp_path), "<|image_pad|>")
    (tmp_path / "preprocessor_config.json").unlink()
    llm = seeing.load()
    assert seeing.answers(llm, {"text": PROMPTS["text"]})["text"] == seeing.reference("plain", [])
    with pytest.raises(RequestError, match=r"or add its preprocessor_config.json to the folder"):
        seeing.answers(llm, {"middle": PROMPTS["middle"]})


@pytest.mark.parametrize("layers", [[0, 9], [1, 1]])
def test_deepstack_layers_that_the_tower_does_not_have_are_refused(tmp_path, layers):
    make_tiny_qwen3_vl(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    fields["vision_config"]["deepstack_visual_indexes"] = layers
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"deepstack_visual_indexes, got \[., .\]; fix"):
        load_tower(tmp_path, dtype=torch.float32, device=torch.device("cpu"))


def test_qwen3_5_takes_the_processor_file_that_transformers_5_saves(tmp_path):
    make_tiny_qwen3_5(tmp_path)
    old = tmp_path / "preprocessor_config.json"
    whole = {"image_processor": json.loads(old.read_text()), "processor_class": "Qwen3VLProcessor"}
    old.unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "None"}))
    assert not read_vision(tmp_path).reads_images
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    vision = read_vision(tmp_path)
    assert vision.reads_images
    tiles = load_processor(tmp_path, vision).process(SMALL).tiles
    assert len(tiles) == 1


@pytest.mark.slow
def test_qwen3_vl_has_a_form_with_experts(tmp_path):
    seeing = Seeing(make_tiny_qwen3_vl_moe(tmp_path), "<|image_pad|>")
    wanted = {name: seeing.reference(*prompt) for name, prompt in PROMPTS.items()}
    drafted = {"draft": "ngram", "max_num_batched_tokens": 46}
    assert seeing.answers(seeing.load(**drafted)) == wanted
    tensors = load_file(tmp_path / "model.safetensors")
    published = {  # transformers saves experts as its modules have them
        name: each.transpose(1, 2).contiguous() if ".experts." in name else each
        for name, each in tensors.items()
    }
    save_file(published, tmp_path / "model.safetensors")
    assert seeing.answers(seeing.load(**drafted)) == wanted


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
def test_every_rank_encodes_images_for_itself(qwen3, references):
    assert qwen3.answers(qwen3.load(tensor_parallel_size=2)) == references["qwen3"]


@pytest.mark.slow
def test_an_image_processor_of_another_model_is_refused_at_load(qwen, tmp_path):
    for path in qwen.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    fields = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**fields, "patch_size": 8}))
    with pytest.raises(ConfigError, match=r"cuts patches of \(8, 2, 2\)"):
        LLM(tmp_path, draft="none", dtype="float32", device="cpu", max_model_len=64)
