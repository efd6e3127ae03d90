"""What a block-parallel head proposes is what it would propose after reading the whole text.

A mistake here changes no token, only how many drafts are accepted. Acceptance is forced at random.
"""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.block_cases import MARKOV, SAMPLED, VARIANTS, mistakes
from support.block_models import DFlashCase, MedusaCase, PardCase, PEagleCase
from support.block_reference import ExpectedDrafts
from support.block_rounds import CHAIN, PROMPT, TREE
from support.engines import Shape, engine_of, make_submission, run_all
from support.forced_rounds import SomeStepsDraft
from support.heads import Variant
from support.matrix import sampling_of
from support.rungs import FixedRung
from support.tiny import VOCAB, save_tiny

from outrider.models.decoder_loader import load_decoder
from outrider.models.pard_draft import PardDraft
from outrider.runtime.draft_kinds import BlockDraft
from outrider.spec.block_drafter import BlockDrafter
from outrider.wire.draft_budget import Budget, Rung
from outrider.wire.row_sampling import RowSampling


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


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("nodes", [2, 4, 30])
@pytest.mark.parametrize("name", ["dflash", "dspark", "reduced", "dflash2"])
def test_trees_of_any_size_have_the_best_nodes(models, monkeypatch, tmp_path, name, nodes):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1)
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, topk=TREE, nodes=nodes)


@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_with_a_fixed_order_of_sums_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name
):
    shape = Shape(page_size=4, step_tokens=64, max_rows=1, arithmetic="exact", max_context=192)
    prompt = [(7 * i + 3) % VOCAB for i in range(121)]  # sums are cut after 128 keys
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, prompt=prompt)


def test_a_block_across_a_border_of_sums_reads_all_its_slots(models, monkeypatch, tmp_path):
    """In torch, values are summed 128 keys at a time. Slots also read slots after themselves."""
    shape = Shape(page_size=4, max_rows=1, draft_attention="reference", max_context=192)
    prompt = [(7 * i + 3) % VOCAB for i in range(121)]
    assert not mistakes(models, monkeypatch, tmp_path, "dflash", shape, prompt=prompt)


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


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("topk", [CHAIN, TREE])
@pytest.mark.parametrize("name", VARIANTS)
def test_sampled_proposals_have_the_noise_of_every_slot(models, monkeypatch, tmp_path, name, topk):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1)
    assert not mistakes(models, monkeypatch, tmp_path, name, shape, topk=topk, sampling=SAMPLED)


def level(folder, *names):
    """Zero some tensors, so that all tokens are equally likely."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in names:
        tensors[name].zero_()
    save_file(tensors, path, metadata={"format": "pt"})


LEVELLED = {
    "dflash": (DFlashCase(), ["norm.weight"]),
    "dspark": (DFlashCase(variant=MARKOV), ["norm.weight", "markov_head.markov_w2.weight"]),
    "peagle": (PEagleCase(variant=Variant(draft_vocab=VOCAB)), ["norm.weight"]),
    "pard": (PardCase(), ["model.norm.weight"]),
    "medusa": (MedusaCase(), [f"lm_heads.{head}.weight" for head in range(4)]),
}


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("name", LEVELLED)
def test_every_slot_draws_the_noise_of_the_target(models, tmp_path, name):
    """Where all tokens are equally likely the noise alone decides: all drafts are accepted."""
    (case, names), folder = LEVELLED[name], tmp_path / "target"
    save_tiny("llama", folder)
    level(folder, "model.norm.weight")
    target = load_decoder(folder, dtype="float32", device=torch.device("cpu"))
    models = replace(models, target=target, folder=folder)
    case.load(models, tmp_path / "draft")
    level(tmp_path / "draft", *names)
    head, steps = case.open(models, tmp_path / "draft"), case.num_drafts
    kind = BlockDraft(model=head, budget=Budget(steps=steps, topk=1, nodes=1 + steps))
    rows = [
        make_submission(
            f"r{seed}", PROMPT[seed:], RowSampling(seed=seed, temperature=0.7), max_tokens=3 * steps
        )
        for seed in range(3)
    ]
    for outputs in run_all(engine_of(target, Shape(page_size=4), kind), rows).values():
        progress = outputs.last.progress
        assert progress.num_accepted >= 2 * steps
        assert progress.rounds <= 3  # of steps + 1 tokens each
        assert len(set(outputs.tokens)) > 3


@pytest.mark.parametrize("topk", [CHAIN, TREE])
def test_rows_share_drafts_by_the_confidence_of_their_heads(models, monkeypatch, tmp_path, topk):
    """A step of 3 rows verifies 6 drafts: those whose chances, from the first on, are best."""
    case, drafts = VARIANTS["dspark"], 2
    head, oracle = case.load(models, tmp_path)
    tree = Budget(steps=case.num_drafts, topk=topk, nodes=6)
    shape = Shape(page_size=4, step_tokens=64, max_rows=3)
    engine = engine_of(models.target, shape, BlockDraft(model=head, budget=tree))
    engine._scheduler._policy = FixedRung(Rung(tree=tree, drafts=drafts))
    drafted, propose = [], BlockDrafter.propose

    def noted(drafter, plan, table):
        found = propose(drafter, plan, table)
        if plan.shape.rows == 3:
            texts = zip(table.last_tokens[plan.decode.rows].tolist(), found.tokens, strict=True)
            drafted.append({last: row.ge(0).sum().item() - 1 for last, row in texts})
        return found

    monkeypatch.setattr(BlockDrafter, "propose", noted)
    prompts = [PROMPT[:5], PROMPT[3:11], PROMPT[9:]]
    greedy = RowSampling(seed=0, temperature=0.0)
    rows = [
        make_submission(f"r{i}", prompt, greedy, max_tokens=9) for i, prompt in enumerate(prompts)
    ]
    outputs = run_all(engine, rows)
    expected, scores = {}, []
    with torch.no_grad():
        for i, prompt in enumerate(prompts):
            text = [*prompt, outputs[f"r{i}"].tokens[0]]
            best = sorted(ExpectedDrafts(oracle, text, greedy).scores(tree).values())
            scores += [(score, text[-1]) for score in best[-tree.nodes + 1 :]]
            expected[text[-1]] = 0
    for _, last in sorted(scores)[-3 * drafts :]:
        expected[last] += 1
    assert drafted[0] == expected
    assert len(expected) == 3
    assert len(set(expected.values())) > 1  # or any order would do
