"""What a block-parallel head proposes is what it would propose after reading the whole text.

A mistake here changes no token, only how many drafts are accepted. Acceptance is forced at random.
"""

from dataclasses import replace

import pytest
import torch
from support.block_heads import BlockVariant
from support.block_models import DFlashCase, MedusaCase, PardCase, PEagleCase
from support.engines import Shape, engine_of, make_submission, run_all
from support.forced_rounds import ForcedRounds, SomeStepsDraft
from support.heads import Variant
from support.matrix import sampling_of
from support.medusa_models import MedusaVariant
from support.tiny import VOCAB

from outrider.engine.draft_policy import WholeBudget
from outrider.models.dflash.dflash_head import DFlashHead
from outrider.models.dflash.markov_head import MarkovHead
from outrider.models.dflash.slot_conv import SlotConv
from outrider.models.eagle.eagle_layer import HeadLayer
from outrider.models.eagle.peagle import PEagleHead
from outrider.models.pard_draft import PardDraft
from outrider.ops.tree import draft_hidden_states
from outrider.runtime.draft_kinds import BlockDraft
from outrider.spec import block_drafter
from outrider.spec.block_drafter import BlockDrafter
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling

MARKOV = BlockVariant(is_next=True, markov_rank=6, has_confidence=True, reads_token=True)
GATED = BlockVariant(size=4, is_next=True, markov_rank=5, is_gated=True, num_layers=1)
TRAINED = Variant(own_embedding=True, norm_before_residual=True, fc_norm=True, head_norm=True)
LOCAL = BlockVariant(
    num_layers=3, taps=3, group=2, markov_rank=5, num_candidates=2, windows=(6, 6, 0)
)
MAPPED = MedusaVariant(num_blocks=2, has_bias=False, draft_vocab=40, shares_head=True)
VARIANTS = {
    "dflash": DFlashCase(),
    "causal": DFlashCase(variant=BlockVariant(is_causal=True, has_mask_vector=True)),
    "dspark": DFlashCase(variant=MARKOV),
    "gated": DFlashCase(variant=GATED),
    "mixed": DFlashCase(variant=BlockVariant(num_layers=3, windows=(6, 0, 6))),
    "windows": DFlashCase(variant=BlockVariant(is_next=True, windows=(9, 9))),
    "dflash2": DFlashCase(variant=LOCAL),
    "causal2": DFlashCase(variant=BlockVariant(taps=2, markov_rank=4, is_causal=True)),
    "peagle": PEagleCase(variant=TRAINED, num_layers=3),
    "peagle1": PEagleCase(num_layers=1),
    "pard": PardCase(),
    "medusa": MedusaCase(),
    "mapped": MedusaCase(variant=MAPPED),
}
PROMPT = [(11 * i + 5) % VOCAB for i in range(21)]
GREEDY = RowSampling(seed=0, temperature=0.0)
CHAIN, TREE = 1, 3  # children of a node


class Spy(ForcedRounds):
    """Notes every proposal of the only row as well, with the hidden states it was made from."""

    def __init__(self, monkeypatch, engine, seed):
        super().__init__(monkeypatch, engine, seed)
        self.proposals, self.states = [], []
        propose, run_block = BlockDrafter.propose, BlockDrafter._run_block

        def noted(drafter, plan, table):
            self.states.append(None)
            tree = propose(drafter, plan, table)
            if plan.shape.rows:
                self.proposals.append((tree.tokens[0, 1:].tolist(), self.states[-1]))
            return tree

        def noted_block(drafter, plan, anchors, table):
            states = run_block(drafter, plan, anchors, table)
            self.states[-1] = states[0]
            return states

        monkeypatch.setattr(BlockDrafter, "propose", noted)
        monkeypatch.setattr(BlockDrafter, "_run_block", noted_block)


def mistakes(
    models,
    monkeypatch,
    folder,
    name,
    shape,
    *,
    seed=0,
    is_hit=False,
    topk=CHAIN,
    policy=None,
    prompt=PROMPT,
):
    """Rounds with other states than the reference's, another chain or another first node."""
    head, oracle = VARIANTS[name].load(models, folder)
    steps = VARIANTS[name].num_drafts
    budget = Budget(steps=steps, topk=topk, nodes=1 + steps if topk == CHAIN else 10)
    engine = engine_of(models.target, shape, BlockDraft(model=head, budget=budget))
    if is_hit:
        run_all(engine, [make_submission("before", [*prompt, 1, 2, 3], GREEDY, max_tokens=2)])
    engine._scheduler._policy = policy or WholeBudget()
    spy = Spy(monkeypatch, engine, seed)
    outputs = run_all(engine, [make_submission("r", prompt, GREEDY, max_tokens=16)])["r"]
    assert not is_hit or outputs.last.progress.cached
    text, rest, wrong = [*prompt, outputs.tokens[0]], outputs.tokens[1:], []
    with torch.no_grad():
        for (proposal, states), accepted in zip(spy.proposals, spy.accepted, strict=True):
            if not rest:
                break  # with overlap a round may run after the answer has ended
            right = oracle.chain(text, steps if topk == CHAIN else 1)
            if proposal and proposal[: len(right)] != right:
                wrong.append(f"after {len(text)} tokens: {proposal} instead of {right}")
            if proposal and (states - oracle.run_block(text)).abs().max() > 1e-4:
                wrong.append(f"after {len(text)} tokens: other states")
            text, rest = text + rest[: accepted + 1], rest[accepted + 1 :]
    drafted = [proposal for proposal, _ in spy.proposals]
    assert len([each for each in drafted if each]) > 2
    assert policy is None or [] in drafted
    return wrong


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("is_hit", [False, True], ids=["cold", "hit"])
@pytest.mark.parametrize("step_tokens", [7, 64])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name, page_size, step_tokens, is_hit
):
    shape = Shape(page_size=page_size, step_tokens=step_tokens, max_rows=1)
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, is_hit=is_hit)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_after_any_branch_of_a_tree_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name, seed, depth
):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1, depth=depth)
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, seed=seed, topk=TREE)


@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_with_a_fixed_order_of_sums_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name
):
    shape = Shape(page_size=4, step_tokens=64, max_rows=1, arithmetic="exact", max_context=192)
    prompt = [(7 * i + 3) % VOCAB for i in range(121)]  # sums are cut after 128 keys
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, prompt=prompt)


@pytest.mark.parametrize("topk", [CHAIN, TREE])
def test_proposals_after_steps_without_drafts_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, topk
):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1)
    policy = SomeStepsDraft(topk)
    assert not mistakes(models, monkeypatch, tmp_path, "dspark", shape, topk=topk, policy=policy)


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_the_first_draft_of_a_twin_is_always_accepted(models, sampling):
    """Its first slot reads what the target reads, and draws the target's noise."""
    twin = PardDraft(models.target, mask_token=3, target_vocab=VOCAB)
    kind = BlockDraft(model=twin, budget=Budget(steps=1, topk=1, nodes=2))
    engine = engine_of(models.target, Shape(page_size=4, step_tokens=11, depth=1), kind)
    rows = [
        make_submission(f"r{index}", PROMPT[index:], sampling_of(sampling, index), max_tokens=9)
        for index in range(3)
    ]
    for outputs in run_all(engine, rows).values():
        progress = outputs.last.progress
        assert progress.num_accepted == progress.drafted > 0


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


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
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
