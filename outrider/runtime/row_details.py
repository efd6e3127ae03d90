"""What few rows report besides their tokens: log-probabilities, draft trees, errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.runtime.row_states import list_states
from outrider.runtime.step_output import (
    StepOutput,
    UnpackedDetails,
    UnpackedLogprobs,
    UnpackedTrees,
)
from outrider.step.shape import NO_STATES, StepShape
from outrider.wire.failure import RequestFailure
from outrider.wire.hidden_states import NO_HIDDEN_STATES
from outrider.wire.row_sampling import LogprobsWanted, RowSampling
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import (
    NO_DETAILS,
    NO_SCORES,
    PromptScores,
    RoundTrace,
    RowDetails,
    TokenLogprobs,
)

Emitted = Sequence[tuple[int, ...]]  # the tokens of every row of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequests:
    """The batch of a step, the sampling of its rows, and failures known before it ended."""

    batch: ScheduledBatch
    samplings: Sequence[RowSampling]  # per row of the batch; empty if no row wants details
    failures: Mapping[int, RequestFailure]  # by row: why the row cannot go on

    @property
    def chunk_samplings(self) -> Sequence[RowSampling]:
        return self.samplings[len(self.batch.decodes) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """Why a row cannot go on after `num_good` tokens of the step."""

    failure: RequestFailure
    num_good: int


def wants_details(shape: StepShape) -> bool:
    """Whether any row of such a step reports more than its tokens."""
    flags = shape.sampling_flags
    has_states = flags.hidden_states != NO_STATES
    return flags.logprobs or flags.scores or flags.trees or has_states


def read_details(
    output: StepOutput,
    requests: StepRequests,
    emitted: Emitted,
    errors: Mapping[int, RowError],  # by place in the batch
) -> dict[int, RowDetails]:
    """The details of the rows that have any, by place in the batch."""
    details, shape = {}, output.shape
    if wants_details(shape):
        read = output.details()
        logprobs = _list_logprobs(read.logprobs)
        reports = _reports(
            logprobs, list(_places(read, shape, requests.batch, emitted)), requests, shape
        )
        rounds = _rounds(read, requests, emitted)
        scores = [NO_SCORES] * len(requests.batch.decodes) + _scores(logprobs, shape, requests)
        batch, samplings = requests.batch, requests.samplings
        states = list_states(read.hidden_states, shape, batch, samplings, emitted)
        details = {
            place: RowDetails(logprobs=report, rounds=traced, scores=scored, hidden_states=held)
            for place, (report, traced, scored, held) in enumerate(
                zip(reports, rounds, scores, states, strict=True)
            )
            if report or traced or scored is not NO_SCORES or held is not NO_HIDDEN_STATES
        }
    for place, error in errors.items():
        details[place] = replace(details.get(place, NO_DETAILS), failure=error.failure)
    return details


def _places(
    read: UnpackedDetails, shape: StepShape, batch: ScheduledBatch, emitted: Emitted
) -> Iterator[list[int]]:
    """Index of each row's log-probabilities: of the query tokens that chose its tokens."""
    num_decodes = len(batch.decodes)
    for place, tokens in enumerate(emitted[:num_decodes]):
        first = read.firsts[place]
        yield [first + node for node in read.path[place][: len(tokens)]]
    for index, tokens in enumerate(emitted[num_decodes:]):
        yield [shape.num_decode_query + index] * len(tokens)


def _reports(
    logprobs: list[TokenLogprobs],
    places: Sequence[list[int]],
    requests: StepRequests,
    shape: StepShape,
) -> list[tuple[TokenLogprobs, ...]]:
    """The log-probabilities that each row wants."""
    if not shape.sampling_flags.logprobs:
        return [()] * len(places)
    return [
        tuple(_cut(logprobs[place], sampling.logprobs, sampling.logprobs.top) for place in own)
        if _wants(sampling.logprobs)
        else ()
        for sampling, own in zip(requests.samplings, places, strict=True)
    ]


def _scores(
    logprobs: list[TokenLogprobs], shape: StepShape, requests: StepRequests
) -> list[PromptScores]:
    """Scores of the tokens of each chunk that wants them, and of the token after it."""
    place, scores = shape.num_reported[0], []  # chunk tokens come after those sampled
    for chunk, sampling in zip(requests.batch.chunks, requests.chunk_samplings, strict=True):
        wanted, count = sampling.logprobs.prompt, len(chunk.tokens)
        skipped = max(wanted.first - 1 - chunk.start, 0)  # a token is scored by the one before
        scored = logprobs[place + skipped : place + count - chunk.is_last]
        cut = tuple(_cut(each, sampling.logprobs, wanted.top) for each in scored)
        first = chunk.start + 1 + skipped
        scores.append(PromptScores(first=first, logprobs=cut) if wanted.is_wanted else NO_SCORES)
        place += count
    return scores


def _rounds(
    read: UnpackedDetails, requests: StepRequests, emitted: Emitted
) -> list[tuple[RoundTrace, ...]]:
    """The round of each row that wants it and emitted tokens."""
    num_decodes = len(requests.batch.decodes)
    drafted = [
        _round_of(read.trees, place, read.path[place][: len(tokens)], tokens)
        if requests.samplings[place].trace
        else ()
        for place, tokens in enumerate(emitted[:num_decodes])
    ]
    begun = [
        _first_round(chunk.tokens[-1], tokens) if sampling.trace and chunk.is_last else ()
        for chunk, sampling, tokens in zip(
            requests.batch.chunks, requests.chunk_samplings, emitted[num_decodes:], strict=True
        )
    ]
    return [*drafted, *begun]


def _round_of(
    trees: UnpackedTrees, row: int, path: list[int], emitted: tuple[int, ...]
) -> tuple[RoundTrace, ...]:
    tokens = [token for token in trees.tokens[row] if token >= 0]  # absent nodes are the last
    parents = trees.parents[row][: len(tokens)]
    return (
        RoundTrace(tokens=tuple(tokens), parents=tuple(parents), path=tuple(path), emitted=emitted),
    )


def _first_round(last: int, emitted: tuple[int, ...]) -> tuple[RoundTrace, ...]:
    """The step that ran the last prompt token: a round without drafts."""
    return (RoundTrace(tokens=(last,), parents=(-1,), path=(0,), emitted=emitted),)


def _list_logprobs(read: UnpackedLogprobs) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            chosen=chosen,
            rank=rank,
            top=tuple(zip(ids, values, strict=True)),
            named=tuple(named),
        )
        for chosen, rank, ids, values, named in zip(
            read.chosen, read.rank, read.top_ids, read.top_values, read.named_values, strict=True
        )
    ]


def _wants(wanted: LogprobsWanted) -> bool:
    return wanted.chosen or wanted.top > 0


def _cut(logprobs: TokenLogprobs, wanted: LogprobsWanted, top: int) -> TokenLogprobs:
    """Only the tokens that this row wants; another row may want more."""
    named = logprobs.named[: len(wanted.named)]
    return replace(logprobs, top=logprobs.top[:top], named=named)
