"""What the engine owes to every model whose past lives in rows: speculation changes no token."""

import itertools
import math
import random

import pytest

from outrider.models.decoder_loader import load_decoder
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget
from support.engines import engine_of, run_all
from support.poison import PoisoningExecutor
from support.row_harness import CPU
from support.row_matrix import (
    CHAIN,
    LONGEST,
    PLAIN,
    PROMPTS,
    Case,
    ask_all,
    mismatches,
    run_case,
    shape_of,
)
from support.tiny import save_tiny

DRAFTS = {"plain": PLAIN, "chain": CHAIN, "longest": LONGEST}
SAMPLINGS = ("greedy", "sampled", "warped")


def cases():
    """Every sampling, drafter and executor with each other; depth and sizes are drawn."""
    rng = random.Random(0)
    for sampling, draft, executor in itertools.product(
        SAMPLINGS, DRAFTS.values(), ("eager", "tape")
    ):
        depth, pad, chunk = rng.choice([0, 1]), rng.choice([1, 3, 4]), rng.choice([1, 7, 30])
        shape = shape_of(draft, chunk=chunk, executor=executor, depth=depth, pad=pad)
        yield Case(sampling, draft, shape)


class RowEquality:
    """Inherited by a test class beside the fixtures `theirs` and `target`."""

    @pytest.mark.fast_cases(2)
    @pytest.mark.parametrize("case", list(cases()), ids=str)
    def test_the_tokens_are_those_of_the_reference_decoder(self, theirs, target, case):
        assert not mismatches(theirs, target, case)

    @pytest.mark.fast_cases(1)
    @pytest.mark.parametrize("draft", [CHAIN, LONGEST], ids=["chain", "longest"])
    def test_drafts_batches_and_chunks_change_no_bit(self, target, draft):
        asked = ask_all("sampled", PROMPTS)
        plain = engine_of(target, shape_of(PLAIN, chunk=64))
        alone = {each.request_id: run_all(plain, [each])[each.request_id] for each in asked}
        together = run_all(engine_of(target, shape_of(draft, chunk=7, depth=1), draft), asked)
        for name, right in alone.items():
            assert together[name].tokens == right.tokens
            assert together[name].logprobs == right.logprobs

    @pytest.mark.parametrize("draft", [CHAIN, LONGEST], ids=["chain", "longest"])
    def test_some_drafts_are_kept_and_some_are_taken_back(self, target, draft):
        outputs = run_case(target, Case("sampled", draft, shape_of(draft, chunk=30)))
        progress = [entry.last.progress for entry in outputs.values()]
        assert (
            0 < sum(each.num_accepted for each in progress) < sum(each.drafted for each in progress)
        )

    @pytest.mark.fast_cases(1)
    def test_rows_that_change_hands_keep_nothing_of_their_former_owner(self, theirs, target):
        case = Case("sampled", CHAIN, shape_of(CHAIN, chunk=7, max_rows=1))
        assert not mismatches(theirs, target, case)

    @pytest.mark.fast_cases(1)
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("draft", [CHAIN, PLAIN], ids=["chain", "plain"])
    def test_unused_memory_never_reaches_an_answer(self, target, draft, value):
        asked = ask_all("sampled", PROMPTS)
        clean = engine_of(target, shape_of(draft, chunk=7, pad=3, max_rows=2), draft)
        poisoned = engine_of(target, shape_of(draft, chunk=7, pad=3, max_rows=2), draft)
        executor = PoisoningExecutor(poisoned, value)
        right, got = run_all(clean, asked), run_all(poisoned, asked)
        assert executor.num_filled
        assert {name: (each.tokens, each.logprobs) for name, each in got.items()} == {
            name: (each.tokens, each.logprobs) for name, each in right.items()
        }

    @pytest.mark.fast_cases(1)
    def test_a_preempted_request_is_computed_again_to_the_same_tokens(self, theirs, target):
        """Pages for about two of the four texts."""
        case = Case("sampled", CHAIN, shape_of(CHAIN, chunk=30, kv_tokens=96))
        outputs = run_case(target, case)
        assert sum(entry.last.progress.preemptions for entry in outputs.values()) > 0
        assert not mismatches(theirs, target, case)

    @pytest.mark.fast_cases(1)
    @pytest.mark.parametrize("executor", ["eager", "tape"])
    def test_a_model_of_usual_attention_drafts_for_it(self, theirs, target, tmp_path, executor):
        save_tiny("llama", tmp_path)
        model = load_decoder(tmp_path, dtype="float32", device=CPU)
        draft = ModelDraft(
            model=StandaloneDraft(model, target_vocab=theirs.config.vocab_size),
            budget=Budget(steps=3, topk=1, nodes=4),
        )
        shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
        assert not mismatches(theirs, target, Case("sampled", draft, shape))
