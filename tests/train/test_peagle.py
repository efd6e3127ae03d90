"""`outrider train peagle`: the training form of masks, and what confidence is trained by."""

import random

import torch
from support.heads import Variant
from support.peagle_heads import PEagleOracle, write_peagle
from support.tiny import VOCAB, save_tiny
from support.training import DEVICE

from outrider.models.block_depth import block_depth
from outrider.models.eagle.inspect_head import open_head
from outrider.train.head_design import HeadDesign, head_fields
from outrider.train.loss import confidence_loss
from outrider.train.packed_attention import DenseAttention
from outrider.train.packed_target import PackedTarget
from outrider.train.training_head import HeadInputs, TrainingHead

DEPTH = 4


def test_masks_in_training_are_those_of_the_engine(tmp_path):
    """Both are compared with one reference; the engine's form is in test_block_proposals.py."""
    theirs = save_tiny("llama", tmp_path / "model")
    target = PackedTarget(tmp_path / "model", DEVICE)
    variant = Variant(fc_norm=True)
    weights = write_peagle(tmp_path / "head", target.config, variant, num_layers=2, dialect="vLLM")
    opened = open_head(tmp_path / "head", target.config, tmp_path / "model")
    draw = random.Random(6)
    first, text = (draw.choices(range(VOCAB), k=length) for length in (7, 16))
    tokens = torch.tensor([[*first, *text]])  # two documents in one sequence
    documents = torch.tensor([[0] * len(first) + [1] * len(text)])
    positions = torch.tensor([[*range(len(first)), *range(len(text))]])
    attention = DenseAttention(documents)
    layers = opened.report.config.aux.aux_layers.layers
    states = target.forward(tokens, positions, attention, layers)
    inputs = HeadInputs(
        aux_hidden_states=states.aux_hidden_states,
        tokens=tokens,
        documents=documents,
        positions=positions,
        attention=attention,
    )
    head = TrainingHead(opened.report.config, DEVICE, embedding=target.embedding)
    oracle = PEagleOracle(theirs, variant, weights, num_layers=2, size=DEPTH)
    with torch.no_grad():
        unrolled = list(head.unroll(opened.tensors, inputs, depth=DEPTH))
        for row in (0, 5, len(text) - 2):
            expected = oracle.run_block(text[: row + 2])  # [DEPTH, width]
            found = torch.stack([each[0, len(first) + row] for each in unrolled])
            assert (found - expected).abs().max() < 1e-4


def test_a_head_drafts_as_far_as_it_was_trained(tmp_path):
    save_tiny("llama", tmp_path)
    design = HeadDesign(
        layout="eagle3",
        draft_vocab=40,
        layers=2,
        masked_drafts=DEPTH,
        intermediate=0,
        heads=0,
        kv_heads=0,
    )
    assert block_depth(head_fields(design, tmp_path)).usual == DEPTH


def test_confidence_learns_the_overlap_and_moves_no_draft():
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    probabilities = logits.detach().roll(1, 0).softmax(-1)
    index = torch.tensor([1, 2, 3, 4, 0])  # row i of the logits is row i + 1 of the probabilities
    confidence = torch.zeros(5, 1, requires_grad=True)
    for _ in range(60):
        loss = confidence_loss(confidence, logits, probabilities, index).sum()
        (gradient,) = torch.autograd.grad(loss, confidence)
        confidence = (confidence - 20 * gradient).detach().requires_grad_()
    assert confidence.sigmoid().min() > 0.99  # both distributions are equal
    other = confidence_loss(confidence, logits, probabilities, index.roll(1))
    assert other.min() > 0.5
    assert torch.autograd.grad(other.sum(), logits, allow_unused=True) == (None,)
