"""Requests whose tokens and rounds are compared between one engine and two."""

from dataclasses import replace

from outrider.runtime.draft_kinds import NgramDraft, NoDraft
from support.engines import make_submission
from support.matrix import TREES, sampling_of

PROMPTS = [
    [(7 * i + i // 3 + 5 * n) % 60 + 3 for i in range(length)]
    for n, length in enumerate((1, 5, 30))
]
NUM_TARGET_LAYERS = 3  # their pages come first
DRAFTERS = ["none", "ngram", "relative", "eagle", "eagle3", "dflash", "dspark", "mtp", "modules"]


def draft_of(models, name):
    if name == "ngram":
        return NgramDraft(budget=TREES["tree"], min_match=1, max_match=4)
    tree = TREES["chain" if name == "modules" else "tree"]
    return NoDraft() if name == "none" else models.draft(name, tree)


def submissions(sampling="greedy", prompts=PROMPTS):
    return [
        make_submission(
            f"r{i}", prompt, replace(sampling_of(sampling, i), trace=True), max_tokens=8
        )
        for i, prompt in enumerate(prompts)
    ]


def pair_traces(pair, asked):
    for each in asked:
        pair.offer(each, each.request_id)
    return traces(pair.decode.engine, [pair.fetched(each, each.request_id) for each in asked])


def traces(engine, submissions):
    """Tokens, rounds, number of cached tokens and log-probabilities of each request.

    Each runs alone, so that its rounds do not depend on the batch.
    """
    found = {}
    for submission in submissions:
        engine.add(submission)
        tokens, rounds, cached, logprobs = [], [], 0, []
        while engine.has_work:
            for update in engine.step():
                tokens += update.tokens
                rounds += update.rounds
                logprobs += update.logprobs
                cached = update.progress.cached
        found[submission.request_id] = (tokens, rounds, cached, logprobs)
    return found
