"""Which parts of sampling a batch needs, from the samplings of its rows."""

from outrider.runtime.row_samplings import RowSamplings
from outrider.step.shape import SamplingFlags
from outrider.wire.draft_budget import PLAIN
from outrider.wire.row_sampling import Filters, LogprobsWanted, PromptLogprobs, RowSampling
from outrider.wire.scheduled_batch import (
    RowAdmission,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)

GREEDY = RowSampling(seed=1, temperature=0.0)
FILTERED = RowSampling(seed=2, filters=Filters(top_k=4))
SCORED = RowSampling(
    seed=3,
    temperature=0.0,
    logprobs=LogprobsWanted(chosen=True, top=1, prompt=PromptLogprobs(is_wanted=True, top=3)),
)


def book_of(samplings):
    book = RowSamplings()
    book.admit([admission(row, sampling) for row, sampling in samplings.items()])
    return book


def admission(row, sampling):
    return RowAdmission(row=row, sampling=sampling, prompt=(), output=())


def batch_of(*rows, prompts=()):
    return ScheduledBatch(
        step=1,
        admissions=(),
        grants=(),
        chunks=tuple(ScheduledChunk(row=row, start=0, tokens=(1,), follower=-1) for row in prompts),
        decodes=ScheduledDecodes(
            rows=rows, bounds=(9,) * len(rows), budgets=(PLAIN,) * len(rows), most_drafts=0
        ),
    )


def test_a_step_needs_what_any_of_its_rows_needs():
    book = book_of({1: GREEDY, 2: FILTERED, 3: GREEDY})
    assert book.flags_of(batch_of(1, 3)) == SamplingFlags()
    assert book.flags_of(batch_of(1, 2, 3)) == SamplingFlags(noise=True, filters=True)
    assert book.of(batch_of(3, 2)) == (GREEDY, FILTERED)


def test_a_prompt_is_scored_while_it_runs_and_not_later():
    book = book_of({1: GREEDY, 4: SCORED})
    running = SamplingFlags(logprobs=True, top_logprobs=5, scores=True)
    assert book.flags_of(batch_of(1, prompts=[4])) == running
    assert book.flags_of(batch_of(1, 4)) == SamplingFlags(logprobs=True, top_logprobs=1)


def test_the_sampling_of_a_row_is_that_of_its_present_request():
    book = book_of({1: FILTERED})
    book.admit([admission(1, GREEDY)])
    assert book.flags_of(batch_of(1)) == SamplingFlags()
    book.forget()
    book.admit([admission(2, FILTERED)])
    assert book.flags_of(batch_of(2)) == SamplingFlags(noise=True, filters=True)
