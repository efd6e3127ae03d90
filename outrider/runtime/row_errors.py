"""Why rows of a step cannot go on, and how many of their tokens are valid."""

from collections.abc import Mapping
from dataclasses import replace

from outrider.ops.sampling.sample_token import NOT_FINITE, NOTHING_LEFT
from outrider.runtime.row_details import RowError, StepRequests
from outrider.runtime.step_output import RowFault, UnpackedTokens
from outrider.wire.failure import FailureKind, RequestFailure

FAILURES = {
    NOT_FINITE: RequestFailure(
        FailureKind.NOT_FINITE,
        "the model computed numbers that are not finite (NaN or infinity) for this text; "
        "look for bad weights in the log of the start, or load the model with dtype float32",
    ),
    NOTHING_LEFT: RequestFailure(
        FailureKind.REQUEST,
        "no token may follow this text: allowed tokens, bad words, bans and the grammar "
        "exclude all of them together; relax one of them",
    ),
}


def row_errors(read: UnpackedTokens, requests: StepRequests) -> dict[int, RowError]:
    """The errors of a step, by place in the batch; padding has none."""
    batch, num_decodes = requests.batch, len(requests.batch.decodes)
    errors = {
        **_of_real_rows(read.decode_faults, num_rows=num_decodes, first=0),
        **_of_real_rows(read.chunk_faults, num_rows=len(batch.chunks), first=num_decodes),
    }
    if requests.failures:
        for place, row in enumerate(batch.rows):
            if row in requests.failures:
                errors[place] = _without_masks(errors.get(place), requests.failures[row])
    return errors


def _without_masks(sampled: RowError | None, failure: RequestFailure) -> RowError:
    """The error of a row whose grammar failed: its tokens were sampled without masks.

    Numbers that are not finite fail it with any grammar, and its KV must not be used again.
    """
    if sampled is not None and sampled.failure.kind is FailureKind.NOT_FINITE:
        return replace(sampled, num_good=0)
    return RowError(failure=failure, num_good=0)


def _of_real_rows(
    faults: Mapping[int, RowFault], *, num_rows: int, first: int
) -> dict[int, RowError]:
    return {
        first + place: RowError(failure=FAILURES[fault.kind], num_good=fault.num_good)
        for place, fault in faults.items()
        if place < num_rows
    }
