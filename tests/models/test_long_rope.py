"""Phi-4-mini and other ropes of long texts: two lists of factors, and partly rotated heads."""

import json

import pytest
import torch
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import LONGROPE
from support.tiny import GLM, MSCALE_ROPE, save_tiny
from support.tiny_folder import write_tokenizer
from support.tiny_sizes import SIZES
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, Phi3Config, Phi3ForCausalLM

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.model_config import parse_config, read_config
from outrider.models.rope_scaling import LongRopeScaling
from outrider.ops.norm_rope import rotary

ORIGINAL = 24
TOLERANCE = 1e-4


def make_phi(folder):
    """A folder as it is published: the context of its short factors is outside of them."""
    torch.manual_seed(0)
    rope = {
        key: each for key, each in LONGROPE["rope_parameters"].items() if "attention" not in key
    }
    more = {"original_max_position_embeddings": ORIGINAL, "rope_parameters": dict(rope)}
    model = Phi3ForCausalLM(Phi3Config(**SIZES | {"pad_token_id": 0} | more)).eval()
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(0.0, 0.35)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    fields["rope_scaling"] = {"type": "longrope"} | {k: rope[k] for k in rope if "factor" in k}
    path.write_text(json.dumps(fields))
    return model


@pytest.fixture(scope="module")
def phi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phi")
    return folder, make_phi(folder)


@pytest.mark.parametrize(("context", "length"), [(ORIGINAL, ORIGINAL), (ORIGINAL + 1, 40)])
def test_the_longest_text_decides_which_factors_count(phi, context, length):
    """Transformers decides by the length of a text: up to the border the short list."""
    folder, model = phi
    tokens = prompt(length)
    logits = harness_of(folder, max_context=context).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


def test_without_a_limit_the_long_factors_count(phi):
    scaling = read_config(phi[0]).rope.scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.factors == scaling.long


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["none", "ngram", "itself"])
@pytest.mark.parametrize("max_model_len", [ORIGINAL, 64])
def test_an_engine_takes_the_factors_of_its_context(phi, draft, max_model_len):
    """A draft model has the factors of its target's context: as a twin it is always right."""
    folder, model = phi
    is_long = max_model_len > ORIGINAL
    tokens = prompt(ORIGINAL + 6 if is_long else 9)
    llm = LLM(
        folder,
        draft=str(folder) if draft == "itself" else draft,
        adaptive=False,
        dtype="float32",
        device="cpu",
        max_model_len=max_model_len,
        max_num_seqs=2,
        max_num_batched_tokens=46,
        kv_tokens=256,
    )
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
    text = list(tokens)
    for _ in range(12):
        text.append(int(expected_logits(model, text)[-1].argmax()))
    assert output.outputs[0].token_ids == text[len(tokens) :]
    if draft == "itself":
        assert output.outputs[0].acceptance.accept_rate == 1.0


def test_channels_that_are_not_rotated_are_not_scaled(phi, monkeypatch):
    """A mistake, put back: the factor of rotated channels for all of a head."""
    folder, model = phi
    reference = rotary.rotation_at_reference

    def all_scaled(positions, frequencies):
        rotation = reference(positions, frequencies)
        rotation.cos.mul_(torch.where(frequencies.radians == 0, frequencies.scale, 1.0))
        return rotation

    monkeypatch.setattr(rotary, "rotation_at", all_scaled)
    monkeypatch.setattr("outrider.models.layers.rotary_embedding.rotation_at", all_scaled)
    tokens = prompt(ORIGINAL)
    logits = harness_of(folder, max_context=ORIGINAL).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["glm4-moe", "mistral"])
def test_any_family_takes_yarn_with_mscale(family, tmp_path):
    """GLM rotates a half of each head."""
    if family == "mistral":
        save_tiny("mistral", tmp_path)
        fields = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_parameters": MSCALE_ROPE}))
        from transformers import MistralForCausalLM

        model = MistralForCausalLM.from_pretrained(tmp_path).eval()
    else:
        torch.manual_seed(0)
        rope = {**MSCALE_ROPE, "partial_rotary_factor": 0.5}
        model = Glm4MoeForCausalLM(Glm4MoeConfig(**GLM, rope_parameters=rope)).eval()
        model.save_pretrained(tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


PHI = {
    "architectures": ["Phi3ForCausalLM"],
    **SIZES,
    "rms_norm_eps": 1e-5,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"short_factor": [1.0] * 3, "long_factor": [1.0] * 4}, "3 numbers in short_factor .* 8"),
        ({"short_factor": [1.0] * 4, "long_factor": [1.0] * 3}, "3 numbers in long_factor .* 8"),
        ({"short_factor": [1.0] * 4}, "'long_factor'"),
        ({"short_factor": [0.0] * 4, "long_factor": [1.0] * 4}, "valid short_factor"),
        ({"short_factor": "x", "long_factor": [1.0] * 4}, "valid short_factor"),
        ({"short_factor": ["x"] * 4, "long_factor": [1.0] * 4}, "needs a valid"),
    ],
)
def test_factors_that_do_not_fit_are_refused_by_name(settings, named):
    with pytest.raises(ConfigError, match=named):
        parse_config(PHI | {"rope_scaling": {"type": "longrope", **settings}})


def test_the_older_name_of_phi_3_is_read():
    """The files of Phi-3-mini-128k say `su`, those of Phi-3-small `yarn`."""
    scaling = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    for name in ("su", "yarn"):
        rope = parse_config(PHI | {"rope_scaling": {"type": name, **scaling}}).rope
        assert isinstance(rope.scaling, LongRopeScaling)
        assert rope.scaling.original_context == 64
