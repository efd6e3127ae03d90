"""The likelihood of texts under a head tells captured layers from their neighbours."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.head_oracle import Oracle
from support.heads import Variant, write_head
from support.tiny import save_tiny

from outrider import LLM
from outrider.bench.head_likelihood import HeadLikelihood, HeadScorer, measure_likelihood
from outrider.bench.head_likelihood import ShiftedLayers as Shifted
from outrider.cli.doctor_probe import explain_likelihood
from outrider.frontend.draft_probe import AnsweredText, run_probe
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.shipped_heads import shipped_head
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head

CPU = torch.device("cpu")
TEXTS = (AnsweredText((7, 3, 44, 19), (60, 2, 31, 8, 25)), AnsweredText((9, 5), (6, 61, 12)))


@pytest.mark.parametrize("shift", [-1, 0, 1])
@torch.inference_mode()
def test_log_probabilities_are_those_of_the_reference_head(tmp_path, shift):
    theirs = save_tiny("llama", tmp_path / "model")
    target = load_decoder(tmp_path / "model", dtype="float32", device=CPU)
    layers = (1, 2)
    write_head(tmp_path / "head", target.config, layers=layers, norm_output=True)
    head = load_head(
        tmp_path / "head",
        target=target,
        target_folder=tmp_path / "model",
        dtype="float32",
        device=CPU,
    )
    found, sureness, is_right = HeadScorer(target, head, TEXTS).scores(shift)
    stored = load_file(tmp_path / "head" / "model.safetensors")
    tensors = {name.replace("midlayer", "layers.0"): each for name, each in stored.items()}
    shifted = tuple(layer + shift for layer in layers)
    oracle = Oracle(theirs, Variant(layers=shifted, norm_output=True), tensors)
    right = torch.cat([of_text(oracle, head.target_ids, each) for each in TEXTS])
    assert (found - right[:, 0]).abs().max() < 1e-4
    assert (sureness - right[:, 1]).abs().max() < 1e-4
    assert is_right.tolist() == right[:, 2].tolist()


def of_text(oracle, target_ids, text):
    """Log-probability, largest probability and whether it is the token's, of every answer token."""
    tokens, rows = [*text.prompt, *text.answer], []
    for end in range(len(text.prompt), len(tokens)):
        states = oracle.project(oracle.aux_hidden_states(tokens[: end - 1]))
        logs = oracle.logits(oracle.forward(tokens[1:end], states)[-1:])[0].log_softmax(-1)
        place = (target_ids == tokens[end]).nonzero().flatten().tolist()
        best = int(logs.argmax())
        rows.append([float(logs[place[0]]) if place else -12.0, float(logs.max().exp()), 0.0])
        rows[-1][0], rows[-1][2] = max(rows[-1][0], -12.0), float([best] == place)
    return torch.tensor(rows)


def measured(**changes):
    shifts = (Shifted(shift=-1, mean=-2.2, t=-4.0), Shifted(shift=1, mean=-2.1, t=-3.0))
    given = {"num_tokens": 160, "mean": -2.0, "sureness": 0.58, "share": 0.64, "shifts": shifts}
    return HeadLikelihood(**{**given, **changes})


def test_a_head_that_fits_is_described_in_one_line():
    (line,) = explain_likelihood(measured())
    assert line == (
        "log-probability of 160 tokens of the target: -2.00; with every captured layer one lower "
        "-2.20, one higher -2.10"
    )


def test_better_layers_and_wrong_sureness_are_named():
    better = (Shifted(shift=1, mean=-1.8, t=3.4),)
    _, line = explain_likelihood(measured(shifts=better))
    assert "layer one higher the head fits better (by 3.4 standard errors)" in line
    _, line = explain_likelihood(measured(sureness=0.7, share=0.35))
    assert "sure of its drafts by 70% on average, and 35% are right" in line


@pytest.fixture(scope="module")
def answered(smollm2_folder):
    """What the default model answers to the built-in prompts."""
    llm = LLM(smollm2_folder, draft="ngram", device="cpu", max_num_seqs=6, max_model_len=256)
    return run_probe(llm.frontend, steps=1, max_tokens=32).texts


CHANGES = {
    "as shipped": ((2, 15, 27), "", 1.0),
    "one too high": ((3, 16, 28), "", 1.0),
    "one too low": ((1, 14, 26), "", 1.0),
    "a scale is missing": ((2, 15, 27), "midlayer.self_attn.o_proj.weight", 50.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_layers_off_by_one_and_a_missing_scale_are_noticed(
    smollm2_folder, answered, tmp_path, change
):
    layers, name, factor = CHANGES[change]
    head = shutil.copytree(shipped_head(DEFAULT_ALIAS).folder, tmp_path / "head")
    fields = json.loads((head / "config.json").read_text())
    fields["eagle_aux_hidden_state_layer_ids"] = layers
    (head / "config.json").write_text(json.dumps(fields))
    if name:
        tensors = load_file(head / "model.safetensors")
        tensors[name] *= factor
        save_file(tensors, head / "model.safetensors")
    found = measure_likelihood(smollm2_folder, head, answered, "packed")
    notes = list(explain_likelihood(found))[1:]
    expected = {
        "as shipped": [],
        "one too high": ["one lower the head fits better"],
        "one too low": ["one higher the head fits better"],
        "a scale is missing": ["the head is sure of its drafts by"],
    }[change]
    assert len(notes) == len(expected)
    assert all(part in note for part, note in zip(expected, notes, strict=True))
