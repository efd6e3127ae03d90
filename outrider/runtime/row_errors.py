"""Why rows of a step cannot go on, and how many of their tokens are valid."""

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.runtime.row_details import StepRequests
from outrider.runtime.step_output import UnpackedTokens

NOT_FINITE = (
    "the model computed numbers that are not finite (NaN or infinity) for this text; "
    "look for bad weights in the log of the start, or load the model with dtype float32"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """Why a row cannot go on after `num_good` tokens of the step."""

    reason: str
    num_good: int


def row_errors(read: UnpackedTokens, requests: StepRequests) -> dict[int, RowError]:
    """The errors of a step, by place in the batch; padding has none."""
    batch, num_decodes = requests.batch, len(requests.batch.decodes)
    good = {
        **_of_real_rows(read.good_of_decodes, num_rows=num_decodes, first=0),
        **_of_real_rows(read.good_of_chunks, num_rows=len(batch.chunks), first=num_decodes),
    }
    errors = {place: RowError(reason=NOT_FINITE, num_good=num) for place, num in good.items()}
    if requests.errors:
        for place, row in enumerate(batch.rows):
            if row in requests.errors:
                errors[place] = RowError(reason=requests.errors[row], num_good=0)
    return errors


def _of_real_rows(good: Mapping[int, int], *, num_rows: int, first: int) -> dict[int, int]:
    return {first + place: num for place, num in good.items() if place < num_rows}
