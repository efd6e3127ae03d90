"""A captured prompt with a drafter, replayed on other tokens, leaves what eager steps leave."""

import pytest
import torch
from support.captured_prompts import embeds_prompt, run_prompts, token_prompt
from support.engines import Shape

from outrider.ops.tree import draft_hidden_states

EAGER = Shape(pad=8, step_tokens=64)
TAPE = Shape(pad=8, step_tokens=64, executor="tape")


def differences(models, drafter="eagle3", make=token_prompt):
    """What the steps of a tape do otherwise than eager ones, in words."""
    found, num_breaks = [], 0
    eager_runs = run_prompts(models, EAGER, drafter, make=make)
    pairs = zip(eager_runs, run_prompts(models, TAPE, drafter, make=make), strict=True)
    for number, (eager, tape) in enumerate(pairs):
        if eager.tokens != tape.tokens:
            found.append(f"prompt {number}: tokens")
        if eager.trees != tape.trees:
            found.append(f"prompt {number}: drafts")
        equal = [torch.equal(a, b) for a, b in zip(eager.pools, tape.pools, strict=True)]
        if not all(equal):
            found.append(f"prompt {number}: KV of {equal.count(False)} layers")
        if number >= 2 and tape.num_eager:
            found.append(f"prompt {number}: {tape.num_eager} of {tape.num_steps} steps were eager")
        if number >= 2 and tape.num_breaks != num_breaks:
            found.append(f"prompt {number}: {tape.num_breaks - num_breaks} breaks more")
        num_breaks = tape.num_breaks
    return found


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize("drafter", ["eagle3", "eagle", "mtp", "relative"])
def test_the_third_prompt_of_a_shape_is_replayed_and_equals_eager(models, drafter):
    assert differences(models, drafter) == []


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle3", "relative"])
def test_the_third_prompt_of_embeddings_is_replayed_and_equals_eager(models, drafter):
    assert differences(models, drafter, embeds_prompt) == []


@pytest.mark.slow
def test_tokens_frozen_at_capture_are_noticed(models, monkeypatch):
    """A mistake, put back: the head catches up with the tokens of the prompt that was captured."""
    original = draft_hidden_states.next_tokens

    def through_the_host(chunk, choice):
        return torch.tensor(original(chunk, choice).tolist())

    monkeypatch.setattr(draft_hidden_states, "next_tokens", through_the_host)
    assert any("KV" in each for each in differences(models))
