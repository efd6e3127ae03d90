"""Mistakes in drafting a block that change no token, only how many drafts are accepted."""

from dataclasses import replace

import pytest
import torch
from support.block_cases import SAMPLED, mistakes
from support.block_rounds import CHAIN, TREE
from support.engines import Shape

from outrider.models.dflash.dflash_head import DFlashHead
from outrider.models.dflash.markov_head import MarkovHead
from outrider.models.dflash.slot_conv import SlotConv
from outrider.models.eagle.eagle_layer import HeadLayer
from outrider.models.eagle.peagle import PEagleHead
from outrider.models.pard_draft import PardDraft
from outrider.ops.tree import draft_hidden_states
from outrider.spec import block_drafter, slot_candidates
from outrider.spec.block_drafter import BlockDrafter
from outrider.spec.slot_candidates import SlotProposer


def context_one_position_late(monkeypatch):
    original = draft_hidden_states.gather_accepted_reference

    def late(outcome, decode, chunk, **written):
        return original(outcome, decode, chunk, **(written | {"lead": 1}))

    monkeypatch.setattr(draft_hidden_states, "gather_accepted_reference", late)


def read_slot_k_as_slot_k_plus_1(monkeypatch):
    original = BlockDrafter._run_block
    monkeypatch.setattr(BlockDrafter, "_run_block", lambda *args: original(*args).roll(-1, dims=1))


def keep_the_kv_of_masks(monkeypatch):
    """The catch-up writes nothing while rows decode."""
    original = HeadLayer.write_kv

    def chunks_only(layer, plan, x, kv, backend):
        if plan.shape.chunk.rows:
            original(layer, plan, x, kv, backend)

    monkeypatch.setattr(HeadLayer, "write_kv", chunks_only)


def let_slots_read_no_later_slots(monkeypatch):
    original = block_drafter.block_slots
    monkeypatch.setattr(
        block_drafter,
        "block_slots",
        lambda anchors, size, *, mask_token, is_causal: original(
            anchors, size, mask_token=mask_token, is_causal=not is_causal
        ),
    )


def let_windows_read_later_slots(monkeypatch):
    """Layers with windows run on the plan of the others."""
    original = DFlashHead.forward_block

    def one_plan(head, slots, states, kv, attention):
        return original(head, replace(slots, causal=slots.plan), states, kv, attention)

    monkeypatch.setattr(DFlashHead, "forward_block", one_plan)


def convolve_across_blocks(monkeypatch):
    """A slot reads the last slot of its own block, which is there in place of zeros."""
    original = SlotConv.convolve

    def around(conv, x, kernel):
        blocks = x.view(-1, conv.size, x.shape[1])
        rolled = torch.stack([blocks.roll(tap, 1) for tap in range(kernel.shape[1])], 2)
        return (kernel * rolled.flatten(0, 1)).sum(1) + 0 * original(conv, x, kernel)

    monkeypatch.setattr(SlotConv, "convolve", around)


def draft_any_token(monkeypatch):
    monkeypatch.setattr(DFlashHead, "_among_candidates", lambda head, scores: scores)


def forget_the_token_before(monkeypatch):
    original = MarkovHead.bias
    monkeypatch.setattr(
        MarkovHead, "bias", lambda head, states, tokens: 0 * original(head, states, tokens)
    )


def take_the_accepted_states_in_the_order_of_the_tree(monkeypatch):
    original = draft_hidden_states._along_path

    def first_nodes(outcome, *, num_chunk_tokens):
        result = outcome.verify_result
        path = torch.arange(result.path.shape[1]).expand_as(result.path)
        outcome = replace(outcome, verify_result=replace(result, path=path))
        return original(outcome, num_chunk_tokens=num_chunk_tokens)

    monkeypatch.setattr(draft_hidden_states, "_along_path", first_nodes)


def begin_at_the_last_token(monkeypatch):
    """A head reads the token after its position, so its block begins one position earlier."""
    monkeypatch.setattr(block_drafter.torch, "sub", lambda a, b, out: out.copy_(a))


def keep_the_state_of_the_first_node(monkeypatch):
    original = BlockDrafter._store

    def stale(self, plan, outcome, states):
        result = outcome.verify_result
        result = replace(result, num_accepted=result.num_accepted * 0)
        original(self, plan, replace(outcome, verify_result=result), states)

    monkeypatch.setattr(BlockDrafter, "_store", stale)


def give_masks_the_state_of_the_last_token(monkeypatch):
    original = PEagleHead.forward_block

    def shared(head, slots, states, kv, attention):
        head._mask_state = states[:1]
        return original(head, slots, states, kv, attention)

    monkeypatch.setattr(PEagleHead, "forward_block", shared)


def catch_up_with_the_first_layer_alone(monkeypatch):
    """Later layers keep the KV of masks."""

    def first_only(head, plan, aux_hidden_states, kv, attention):
        states = head._parts.project(aux_hidden_states)
        head._parts.layer.write_kv(plan, head._parts.join(plan, states)[0], kv, attention)
        return states

    monkeypatch.setattr(PEagleHead, "catch_up", first_only)


def read_the_next_tokens(monkeypatch):
    """A whole model reads the token at a position, not the one after it."""
    monkeypatch.setattr(
        BlockDrafter, "_tokens_read", lambda drafter, plan, outcome: outcome.verify_result.emitted
    )


def keep_the_kv_of_slots(monkeypatch):
    """The catch-up runs while there are prompts alone."""
    original = PardDraft.catch_up

    def chunks_only(model, plan, aux_hidden_states, kv, attention):
        if plan.shape.chunk.rows:
            original(model, plan, aux_hidden_states, kv, attention)
        return aux_hidden_states

    monkeypatch.setattr(PardDraft, "catch_up", chunks_only)


def read_masks_as_token_0(monkeypatch):
    original = block_drafter.block_slots
    monkeypatch.setattr(
        block_drafter,
        "block_slots",
        lambda anchors, size, *, mask_token, is_causal: original(
            anchors, size, mask_token=0 * mask_token, is_causal=is_causal
        ),
    )


def ignore_the_confidence(monkeypatch):
    monkeypatch.setattr(DFlashHead, "confidence", lambda head, states, tokens: None)


def read_the_token_before_as_a_draft_id(monkeypatch):
    """The Markov table of tokens before has all tokens of the target."""
    original = DFlashHead.bias

    def in_draft_ids(head, states, tokens):
        return original(head, states, torch.searchsorted(head.target_ids, tokens))

    monkeypatch.setattr(DFlashHead, "bias", in_draft_ids)


def add_the_bias_in_target_ids(monkeypatch):
    original = DFlashHead.bias

    def by_target_id(head, states, tokens):
        bias = original(head, states, tokens)
        return bias[:, head.target_ids.clamp_max(bias.shape[1] - 1)]

    monkeypatch.setattr(DFlashHead, "bias", by_target_id)


def change_tokens_before(monkeypatch, change):
    """Below the first depth, tips get the children of other tokens. `change` is of [rows, tips]."""
    original = SlotProposer._after_each

    def changed(proposer, plan, logits, states, before, *, step):
        before = change(before) if step else before
        return original(proposer, plan, logits, states, before, step=step)

    monkeypatch.setattr(SlotProposer, "_after_each", changed)


def grow_all_tips_like_the_best(monkeypatch):
    change_tokens_before(monkeypatch, lambda before: before[:, :1].expand_as(before))


def grow_tips_like_their_neighbours(monkeypatch):
    change_tokens_before(monkeypatch, lambda before: before.roll(1, dims=1))


def grow_tips_like_node_0(monkeypatch):
    original = SlotProposer._grow

    def remembered(proposer, plan, root, states):
        change_tokens_before(monkeypatch, lambda before: root[:, None].expand_as(before))
        return original(proposer, plan, root, states)

    monkeypatch.setattr(SlotProposer, "_grow", remembered)


def grow_as_many_tips_as_a_node_has_children(monkeypatch):
    """A beam: the best nodes are missed."""
    monkeypatch.setattr(
        slot_candidates, "tip_widths", lambda tree, rows: [1, *[tree.topk] * (tree.steps - 1)]
    )


def select_a_level_from_the_first_tip(monkeypatch):
    """Nodes of a level hang below the best tip."""
    original = slot_candidates.grow_level

    def below_the_first(tips, top, decode, *, candidates, level):
        after = original(tips, top, decode, candidates=candidates, level=level)
        candidates.parents.copy_(tips.numbers[:, :1].expand_as(candidates.parents))
        return after

    monkeypatch.setattr(slot_candidates, "grow_level", below_the_first)


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(
    "mutate",
    [
        add_the_bias_in_target_ids,
        grow_all_tips_like_the_best,
        grow_tips_like_their_neighbours,
        grow_tips_like_node_0,
        grow_as_many_tips_as_a_node_has_children,
        select_a_level_from_the_first_tip,
    ],
)
def test_whole_trees_betray(models, monkeypatch, tmp_path, mutate):
    """The states of all slots stay right, and in most of these the first node, too."""
    mutate(monkeypatch)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    assert mistakes(models, monkeypatch, tmp_path, "reduced", shape, topk=TREE, nodes=30)


def draw_the_noise_of_the_first_slot(monkeypatch):
    original = slot_candidates.likely_samples

    def first(*args, positions, **how):
        return original(*args, positions=positions.min().expand_as(positions), **how)

    monkeypatch.setattr(slot_candidates, "likely_samples", first)


def draw_the_noise_of_the_slot_before(monkeypatch):
    original = slot_candidates.likely_samples
    monkeypatch.setattr(
        slot_candidates,
        "likely_samples",
        lambda *args, positions, **how: original(*args, positions=positions - 1, **how),
    )


def draw_no_noise(monkeypatch):
    def plain(logits, ids, topk, **how):
        del how
        return slot_candidates.likely_tokens(logits, ids, topk)

    monkeypatch.setattr(slot_candidates, "likely_samples", plain)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    ("name", "topk", "mutate"),
    [
        ("dflash", CHAIN, draw_the_noise_of_the_first_slot),
        ("dflash", TREE, draw_the_noise_of_the_slot_before),
        ("dspark", CHAIN, draw_the_noise_of_the_slot_before),
        ("dspark", TREE, draw_the_noise_of_the_slot_before),
        ("dspark", TREE, draw_no_noise),
        ("peagle", CHAIN, draw_the_noise_of_the_first_slot),
    ],
)
def test_sampled_proposals_betray(models, monkeypatch, tmp_path, name, topk, mutate):
    mutate(monkeypatch)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    assert mistakes(models, monkeypatch, tmp_path, name, shape, topk=topk, sampling=SAMPLED)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("dspark", context_one_position_late),
        ("dspark", read_slot_k_as_slot_k_plus_1),
        ("dspark", keep_the_kv_of_masks),
        ("dspark", let_slots_read_no_later_slots),
        ("dspark", take_the_accepted_states_in_the_order_of_the_tree),
        ("dspark", forget_the_token_before),
        ("dspark", ignore_the_confidence),
        ("confident", ignore_the_confidence),
        ("reduced", read_the_token_before_as_a_draft_id),
        ("reduced", add_the_bias_in_target_ids),
        ("dflash", context_one_position_late),
        ("dflash", read_slot_k_as_slot_k_plus_1),
        ("dflash", keep_the_kv_of_masks),
        ("dflash", let_slots_read_no_later_slots),
        ("dflash", take_the_accepted_states_in_the_order_of_the_tree),
        ("mixed", let_windows_read_later_slots),
        ("dflash2", convolve_across_blocks),
        ("dflash2", draft_any_token),
        ("dflash2", forget_the_token_before),
        ("peagle", context_one_position_late),
        ("peagle", begin_at_the_last_token),
        ("peagle", keep_the_state_of_the_first_node),
        ("peagle", give_masks_the_state_of_the_last_token),
        ("peagle", catch_up_with_the_first_layer_alone),
        ("medusa", keep_the_state_of_the_first_node),
        ("medusa", read_slot_k_as_slot_k_plus_1),
        ("medusa", take_the_accepted_states_in_the_order_of_the_tree),
        ("pard", context_one_position_late),
        ("pard", read_the_next_tokens),
        ("pard", keep_the_kv_of_slots),
        ("pard", read_masks_as_token_0),
    ],
)
def test_proposals_betray(models, monkeypatch, tmp_path, name, mutate):
    mutate(monkeypatch)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    found = [
        mistakes(models, monkeypatch, tmp_path, name, shape, topk=topk) for topk in (CHAIN, TREE)
    ]
    assert any(found)
