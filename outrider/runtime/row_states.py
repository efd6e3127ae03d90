"""The hidden states that each row of a step reports."""

from collections.abc import Iterator, Sequence

import numpy as np

from outrider.step.shape import ALL_STATES, NO_STATES, StepShape
from outrider.wire.hidden_states import NO_HIDDEN_STATES, HiddenStates
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import ScheduledBatch

_NOT_KNOWN = -1  # the position of a decode row


def list_states(
    states: np.ndarray,  # [n, hidden] as `StepShape.num_states` counts them
    shape: StepShape,
    batch: ScheduledBatch,
    samplings: Sequence[RowSampling],  # of every row of the batch
    emitted: Sequence[tuple[int, ...]],  # likewise
) -> list[HiddenStates]:
    """The hidden states of every row of the batch that wants them."""
    if shape.sampling_flags.hidden_states == NO_STATES:
        return [NO_HIDDEN_STATES] * len(samplings)
    num_nodes, num_decodes = shape.num_states[0], len(batch.decodes)
    nodes, chunks = states[:num_nodes], states[num_nodes:]
    return [
        *_of_decodes(nodes, shape, samplings[:num_decodes], emitted[:num_decodes]),
        *_of_chunks(chunks, shape, batch, samplings[num_decodes:]),
    ]


def _of_decodes(
    states: np.ndarray,  # [rows * most_emitted, hidden]
    shape: StepShape,
    samplings: Sequence[RowSampling],
    emitted: Sequence[tuple[int, ...]],
) -> Iterator[HiddenStates]:
    """One for each token: of the accepted node that chose it."""
    paths = states.reshape(shape.rows, shape.tree.most_emitted, states.shape[1])
    for place, (sampling, tokens) in enumerate(zip(samplings, emitted, strict=True)):
        is_wanted = sampling.hidden_states != "none"
        yield _bytes_of(paths[place, : len(tokens)], _NOT_KNOWN) if is_wanted else NO_HIDDEN_STATES


def _of_chunks(
    states: np.ndarray,  # [chunk.tokens or chunk.rows, hidden]
    shape: StepShape,
    batch: ScheduledBatch,
    samplings: Sequence[RowSampling],
) -> Iterator[HiddenStates]:
    """Those of the whole chunk, their sum, or that of the token that ends the prompt."""
    has_all, place = shape.sampling_flags.hidden_states == ALL_STATES, 0
    for chunk, sampling in zip(batch.chunks, samplings, strict=True):
        stop = place + (len(chunk.tokens) if has_all else 1)
        if sampling.hidden_states == "all":
            yield _bytes_of(states[place:stop], chunk.start)
        elif sampling.hidden_states == "sum":
            yield _bytes_of(states[place:stop].sum(0, keepdims=True, dtype="f8"), chunk.start)
        elif sampling.hidden_states == "last" and chunk.is_last:
            yield _bytes_of(states[stop - 1 : stop], chunk.start + len(chunk.tokens) - 1)
        else:
            yield NO_HIDDEN_STATES
        place = stop


def _bytes_of(states: np.ndarray, first: int) -> HiddenStates:
    values = np.ascontiguousarray(states, dtype="<f4").tobytes()
    return HiddenStates(first=first, width=states.shape[-1], values=values)
