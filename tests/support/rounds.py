"""Collects the round traces of an engine, and checks what every trace must satisfy."""

from dataclasses import replace

from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget
from outrider.wire.step_result import RoundTrace
from support.engines import NO_DRAFT, make_submission
from support.matrix import PROMPTS, SAMPLINGS, TREES

TEXTS = [[5, 6, 7, 8] * 5, [5, 6, 7, 8] * 3 + [5, 6, 30, 5, 6], *PROMPTS[2:]]
MAX_TOKENS = 12
FEW_WORDS = tuple((token, 30.0) for token in (5, 6, 7))  # so that it repeats itself now and then


def drafts_of(models):
    return {
        "none": NO_DRAFT,
        "chain": NgramDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=2, max_match=4),
        "tree": NgramDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3),
        "model": models.draft("relative", TREES["tree"]),
    }


def listen(engine, *, traced, sampling="sampled", **limits):
    """The tokens and the rounds of every prompt; only those numbered in `traced` ask for rounds."""
    sampling = replace(SAMPLINGS[sampling], bias=FEW_WORDS)
    for i, text in enumerate(TEXTS):
        own = replace(sampling, trace=i in traced)
        engine.add(make_submission(f"r{i}", text, own, **{"max_tokens": MAX_TOKENS, **limits}))
    outputs = {f"r{i}": ([], []) for i in range(len(TEXTS))}
    while engine.has_work:
        for update in engine.step():
            tokens, rounds = outputs[update.request_id]
            tokens += update.tokens
            rounds += update.rounds
    return outputs


def assert_is_a_tree(each: RoundTrace):
    assert len(each.tokens) == len(each.parents)
    assert min(each.tokens) >= 0
    assert each.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(each.parents) if node)


def assert_tells_how(rounds: list[RoundTrace], prompt: list[int], tokens: list[int]):
    """The rounds are a partition of the output; each path is a branch whose tokens were emitted."""
    assert [token for each in rounds for token in each.emitted] == tokens
    text = [*prompt]
    for each in rounds:
        assert_is_a_tree(each)
        assert each.tokens[0] == text[-1]  # node 0 was there before
        assert each.path[0] == 0
        assert [each.parents[node] for node in each.path[1:]] == list(each.path[:-1])
        num_accepted = tuple(each.tokens[node] for node in each.path[1:])
        assert each.emitted[: each.num_accepted] == num_accepted
        assert each.has_bonus or each is rounds[-1]
        text += each.emitted


def assert_accounted_for(engine, *, drafts: bool):
    """Tracing changes no token, and the rounds tell how each of them came."""
    plain = listen(engine, traced=())
    traced = listen(engine, traced=range(len(TEXTS)))
    assert [tokens for tokens, _ in traced.values()] == [tokens for tokens, _ in plain.values()]
    for prompt, (tokens, rounds) in zip(TEXTS, traced.values(), strict=True):
        assert_tells_how(rounds, prompt, tokens)
    everything = [each for _, rounds in traced.values() for each in rounds]
    assert any(each.num_accepted for each in everything) == drafts
    assert (max(len(each.tokens) for each in everything) > 1) == drafts
