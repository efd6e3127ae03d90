"""Hidden states as engines report them, and as transformers computes them."""

from dataclasses import replace

import numpy as np
import torch

from support.engines import make_submission
from support.matrix import PROMPTS, sampling_of

MAX_TOKENS = 9


def run_states(engine, submissions, emitted=()):
    """Tokens and hidden states of every request, by request id."""
    for submission in submissions:
        engine.add(submission, tuple(emitted))
    tokens = {each.request_id: [] for each in submissions}
    states = {each.request_id: [] for each in submissions}
    while engine.has_work:
        for update in engine.step():
            assert update.finish != "error", update.reason
            tokens[update.request_id] += update.tokens
            for held in update.hidden_states:
                rows = np.frombuffer(held.values, dtype="<f4").reshape(len(held), held.width)
                states[update.request_id].append(rows)
    return tokens, {name: np.concatenate(parts) for name, parts in states.items() if parts}


def reference_states(theirs, text):
    """[tokens - 1, hidden]: the last token of a text has not run."""
    with torch.inference_mode():
        return theirs.model(torch.tensor([text])).last_hidden_state[0, :-1].numpy()


def state_submissions(mode, prompts=PROMPTS, **more):
    return [
        make_submission(
            f"r{i}",
            prompt,
            replace(sampling_of("mixed", i), hidden_states=mode),
            max_tokens=MAX_TOKENS,
            **more,
        )
        for i, prompt in enumerate(prompts)
    ]


def state_differences(theirs, engine, prompts=PROMPTS):
    """The largest difference of any value, with every mode in turn and a prefix that is cached."""
    worst = 0.0
    for mode in ("all", "last", "all"):
        tokens, states = run_states(engine, state_submissions(mode, prompts))
        for i, prompt in enumerate(prompts):
            right = reference_states(theirs, [*prompt, *tokens[f"r{i}"]])
            got = states[f"r{i}"]
            # With "last" the front end keeps the last of those that chose a token.
            right = right if mode == "all" else right[-MAX_TOKENS:]
            assert got.shape == right.shape
            worst = max(worst, float(np.abs(got - right).max()))
    return worst
