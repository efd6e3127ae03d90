"""Why rows of a step cannot go on, and how many of their tokens are valid."""

from collections.abc import Mapping

from outrider.ops.sampling.sample_token import NOT_FINITE, NOTHING_LEFT
from outrider.runtime.row_details import RowError, StepRequests
from outrider.runtime.step_output import RowFault, UnpackedTokens

REASONS = {
    NOT_FINITE: "the model computed numbers that are not finite (NaN or infinity) for this text; "
    "look for bad weights in the log of the start, or load the model with dtype float32",
    NOTHING_LEFT: "no token may follow this text: allowed tokens, bad words, bans and the grammar "
    "exclude all of them together; relax one of them",
}


def row_errors(read: UnpackedTokens, requests: StepRequests) -> dict[int, RowError]:
    """The errors of a step, by place in the batch; padding has none."""
    batch, num_decodes = requests.batch, len(requests.batch.decodes)
    errors = {
        **_of_real_rows(read.decode_faults, num_rows=num_decodes, first=0),
        **_of_real_rows(read.chunk_faults, num_rows=len(batch.chunks), first=num_decodes),
    }
    if requests.errors:
        for place, row in enumerate(batch.rows):
            if row in requests.errors:
                errors[place] = RowError(
                    reason=requests.errors[row],
                    num_good=0,
                    is_not_finite=place in errors and errors[place].is_not_finite,
                )
    return errors


def _of_real_rows(
    faults: Mapping[int, RowFault], *, num_rows: int, first: int
) -> dict[int, RowError]:
    return {
        first + place: RowError(
            reason=REASONS[fault.kind],
            num_good=fault.num_good,
            is_not_finite=fault.kind == NOT_FINITE,
        )
        for place, fault in faults.items()
        if place < num_rows
    }
