"""What a head proposes is what it would propose after reading the whole text from scratch.

A mistake here changes no token, only how many drafts are accepted, so nothing else would notice it.
Acceptance is forced at random: the text is then not the target's own, but drafts must follow it.
"""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.forced_rounds import SomeStepsDraft
from support.head_rounds import CHAIN, GREEDY, PROMPT, TREE, mistakes
from support.heads import Variant, write_head

from outrider.models.eagle.eagle_layer import HeadLayer
from outrider.models.eagle.head_loader import load_head
from outrider.models.layers.mla import LatentWriter
from outrider.ops.tree import draft_hidden_states
from outrider.runtime.draft_kinds import ModelDraft
from outrider.spec.model_drafter import ModelDrafter
from outrider.wire.draft_budget import PLAIN, UNBOUNDED

VARIANTS = {
    "eagle": Variant(algorithm="eagle"),
    "eagle3": Variant(),
    "eagle3.1": Variant(fc_norm=True, norm_output=True, norm_before_residual=True),
    "two layers": Variant(num_layers=2, later_norm="hidden_norm"),
    "latents": Variant(has_latents=True, query_rank=14),
}


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("is_prefix_hit", [False, True], ids=["cold", "hit"])
@pytest.mark.parametrize("step_tokens", [7, 64])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name, page_size, step_tokens, is_prefix_hit
):
    shape = Shape(page_size=page_size, step_tokens=step_tokens, max_rows=1)
    wrong = mistakes(
        models, monkeypatch, tmp_path, VARIANTS[name], shape, is_prefix_hit=is_prefix_hit
    )
    assert not wrong


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_after_any_branch_of_a_tree_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name, seed, depth
):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1, depth=depth)
    variant = VARIANTS[name]
    assert not mistakes(models, monkeypatch, tmp_path, variant, shape, seed=seed, budget=TREE)


@pytest.mark.parametrize("budget", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", range(2))
def test_proposals_after_steps_without_drafts_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, seed, budget
):
    shape = Shape(page_size=4, step_tokens=20, max_rows=1, depth=seed)
    variant, policy = VARIANTS["eagle3"], SomeStepsDraft(seed)
    assert not mistakes(
        models, monkeypatch, tmp_path, variant, shape, seed=seed, budget=budget, policy=policy
    )


def test_steps_without_drafts_write_draft_kv_and_run_no_layer_of_the_head(
    models, monkeypatch, tmp_path
):
    head = load_head(
        write_head(tmp_path, models.target.config),
        target=models.target,
        target_folder=models.folder,
        dtype="float32",
        device=torch.device("cpu"),
    )
    engine = engine_of(models.target, Shape(), ModelDraft(model=head, budget=CHAIN))
    calls, run, budgets = [], HeadLayer.__call__, [PLAIN, UNBOUNDED]
    monkeypatch.setattr(HeadLayer, "__call__", lambda *args: calls.append(1) or run(*args))
    num_calls = []
    for index, budget in enumerate(budgets):
        submission = make_submission(str(index), PROMPT, GREEDY, max_tokens=6, budget=budget)
        run_all(engine, [submission])
        num_calls.append(len(calls))
    assert num_calls[0] == 0
    assert num_calls[1] > 0


def feed_the_token_itself_not_the_next(monkeypatch):
    """The token shift of a chunk is off by one."""
    monkeypatch.setattr(draft_hidden_states, "next_tokens", lambda chunk, choice: chunk.tokens)


def take_the_choice_at_every_chunk_end(monkeypatch):
    """Inside a prompt the next token is the prompt's, not the one that the target samples."""
    original = draft_hidden_states.next_tokens

    def eager(chunk, choice):
        return original(replace(chunk, followers=chunk.followers * 0 - 1), choice)

    monkeypatch.setattr(draft_hidden_states, "next_tokens", eager)


def catch_up_on_hidden_states_in_the_order_of_the_tree(monkeypatch):
    """Hidden states of the first nodes instead of those on the path; only a tree shows it."""
    original = draft_hidden_states._along_path

    def first_nodes(outcome, *, num_chunk_tokens):
        result = outcome.verify_result
        path = torch.arange(result.path.shape[1]).expand_as(result.path)
        outcome = replace(outcome, verify_result=replace(result, path=path))
        return original(outcome, num_chunk_tokens=num_chunk_tokens)

    monkeypatch.setattr(draft_hidden_states, "_along_path", first_nodes)


def keep_the_state_of_the_first_node(monkeypatch):
    original = ModelDrafter.observe

    def stale(self, plan, outcome, table):
        verify_result = replace(
            outcome.verify_result, num_accepted=outcome.verify_result.num_accepted * 0
        )
        original(self, plan, replace(outcome, verify_result=verify_result), table)

    monkeypatch.setattr(ModelDrafter, "observe", stale)


def write_the_rotary_keys_of_latents_unrotated(monkeypatch):
    """The catch-up of a head with latents forgets what its forward pass does."""
    write = LatentWriter.__call__

    def unrotated(self, x, layer, step):
        rotation = step.rotation
        cos, sin = torch.ones_like(rotation.cos), torch.zeros_like(rotation.sin)
        write(self, x, layer, replace(step, rotation=replace(rotation, cos=cos, sin=sin)))

    monkeypatch.setattr(LatentWriter, "__call__", unrotated)


def test_proposals_betray_latents_that_are_caught_up_wrongly(models, monkeypatch, tmp_path):
    write_the_rotary_keys_of_latents_unrotated(monkeypatch)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    assert mistakes(models, monkeypatch, tmp_path, VARIANTS["latents"], shape)


@pytest.mark.parametrize(
    "mutate",
    [
        feed_the_token_itself_not_the_next,
        take_the_choice_at_every_chunk_end,
        catch_up_on_hidden_states_in_the_order_of_the_tree,
        keep_the_state_of_the_first_node,
    ],
    ids=lambda mutate: mutate.__name__,
)
def test_proposals_betray(models, monkeypatch, tmp_path, mutate):
    mutate(monkeypatch)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    found = [
        mistakes(models, monkeypatch, tmp_path, VARIANTS["eagle3"], shape, budget=budget)
        for budget in (CHAIN, TREE)
    ]
    assert any(found)
