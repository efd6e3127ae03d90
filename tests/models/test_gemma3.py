"""Folders of Gemma-3 with a vision tower: their text part, and the fields that they leave out."""

import json

import pytest
from safetensors.torch import load_file
from support.decoders import expected_logits, harness_of, prompt
from support.tiny import tiny_model
from support.tiny_folder import write_tokenizer
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig

from outrider import LLM, SamplingParams
from outrider.errors import RequestError
from outrider.models.model_config import parse_config
from outrider.models.rope_scaling import LinearScaling, NoScaling
from outrider.ops.attention.attention_rule import WHOLE_TEXT

TOKENS = prompt(40)
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
# What the text_config of gemma-3-4b-it has.
PUBLISHED = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder, text = tmp_path_factory.mktemp("gemma3"), tiny_model("gemma3")
    config = Gemma3Config(
        text_config=text.config.to_dict(), vision_config=VISION, mm_tokens_per_image=4
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    model.config.text_config._attn_implementation = "eager"
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder, model


def test_a_folder_with_images_has_the_logits_of_its_text_part(tiny):
    folder, model = tiny
    stored = load_file(folder / "model.safetensors")
    assert {name.split(".")[0] for name in stored} > {"language_model", "vision_tower"}
    logits = harness_of(folder).run({}, {1: (0, TOKENS)})
    assert (logits - expected_logits(model, TOKENS)).abs().max() <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_texts_are_answered_and_images_are_refused_with_the_reason(tiny, draft):
    folder, model = tiny
    llm = LLM(folder, draft=draft, adaptive=False, dtype="float32", device="cpu", max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": TOKENS}, params, use_tqdm=False)
    text = list(TOKENS)
    for _ in range(9):
        text.append(int(expected_logits(model, text)[-1].argmax()))
    assert output.outputs[0].token_ids == text[len(TOKENS) :]
    pil = pytest.importorskip("PIL.Image")
    image = {"prompt": "a", "multi_modal_data": {"image": pil.new("RGB", (8, 8))}}
    with pytest.raises(RequestError, match="see each other both ways, and attention here is"):
        llm.generate(image, params, use_tqdm=False)


def test_fields_that_published_files_leave_out_are_those_of_transformers():
    config = parse_config(
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": PUBLISHED}
    )
    theirs = Gemma3TextConfig(**json.loads(json.dumps(PUBLISHED)))
    attention, block = config.plain_attention, config.block
    assert attention.heads == theirs.num_attention_heads
    assert attention.kv_heads == theirs.num_key_value_heads
    assert attention.head_dim == theirs.head_dim
    assert config.vocab_size == theirs.vocab_size
    assert config.max_context == theirs.max_position_embeddings
    assert block.norm_eps == theirs.rms_norm_eps
    assert config.is_tied
    assert config.multipliers.attention == theirs.query_pre_attn_scalar**-0.5
    windows = [1024 if kind == "sliding_attention" else WHOLE_TEXT for kind in theirs.layer_types]
    assert list(config.pattern.windows) == windows
    by_window = dict(zip(config.pattern.windows, config.pattern.ropes, strict=True))
    ropes = theirs.rope_parameters
    assert by_window[1024].scaling == NoScaling()
    assert by_window[1024].theta == ropes["sliding_attention"]["rope_theta"]
    assert by_window[WHOLE_TEXT].scaling == LinearScaling(factor=8.0)
    assert by_window[WHOLE_TEXT].theta == ropes["full_attention"]["rope_theta"]
