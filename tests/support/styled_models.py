"""Models whose layers differ from a Llama, what drafts for them, and runs of their engines."""

import random
from dataclasses import replace

import torch

from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import ModelDraft, NgramDraft, NoDraft
from support.engines import Shape, engine_of, make_submission, run_all
from support.heads import write_head
from support.matrix import MAX_TOKENS, PROMPTS, TREES, right_answer, sampling_of
from support.tiny import save_tiny


class StyledModels:
    """A target of a family, and what drafts for it."""

    def __init__(self, family, root, device="cpu"):
        place = torch.device(device)
        self.theirs = save_tiny(family, root / "target")
        save_tiny(family, root / "relative", disturbance=0.02)
        self.target, relative = (
            load_decoder(root / name, dtype="float32", device=place)
            for name in ("target", "relative")
        )
        head = write_head(root / "head", self.target.config, own_embedding=False)
        vocab = self.target.config.vocab_size
        self.models = {
            "relative": StandaloneDraft(relative, target_vocab=vocab),
            "twin": StandaloneDraft(self.target, target_vocab=vocab),
            "eagle3": load_head(
                head,
                target=self.target,
                target_folder=root / "target",
                dtype="float32",
                device=place,
            ),
        }

    def draft(self, drafter, tree):
        budget = TREES[tree]
        if drafter == "none":
            return NoDraft()
        if drafter == "ngram":
            return NgramDraft(budget=budget, min_match=1, max_match=3)
        return ModelDraft(model=self.models[drafter], budget=budget)


def random_shape(rng, tree):
    return Shape(
        page_size=rng.choice([1, 4, 16]),
        pad=rng.choice([1, 4]),
        executor=rng.choice(["eager", "tape"]),
        depth=rng.choice([0, 1]),
        step_tokens=4 * TREES[tree].nodes + rng.choice([1, 7, 60]),
    )


def mismatches(models, *, drafter, tree, is_hit, seed, **place):
    """The prompts whose tokens or logprobs are not those of the reference decoder."""
    rng = random.Random(seed)
    sampling = rng.choice(["greedy", "sampled", "warped"])
    shape = replace(random_shape(rng, tree), **place)
    engine = engine_of(models.target, shape, models.draft(drafter, tree))
    submissions = [
        make_submission(f"r{i}", prompt, sampling_of(sampling, i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = [run_all(engine, submissions) for _ in range(1 + is_hit)][-1]
    found = []
    for i in range(len(PROMPTS)):
        right, got = right_answer(models.theirs, sampling, i), outputs[f"r{i}"]
        if got.tokens != right.tokens:
            found.append(f"prompt {i}: {got.tokens} instead of {right.tokens}")
        elif max(abs(a - b) for a, b in zip(got.logprobs, right.logprobs, strict=True)) > 1e-4:
            found.append(f"prompt {i}: logprobs {got.logprobs} instead of {right.logprobs}")
    return found
