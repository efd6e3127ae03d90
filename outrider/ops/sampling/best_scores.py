"""The best score of every row, in one parallel search on a CPU."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.graph_break import graph_break

_COMPILED = "outrider.ops.compiled.best_of_rows"


def best_scores(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # [n, width] -> [n]
    """The column of the best score, and the score.

    NaN counts as the largest, and of equal scores the first is the best.
    """
    if scores.dtype == torch.float32 and scores.shape[1] and is_compiled(scores, _COMPILED):
        columns = scores.new_empty(scores.shape[0], dtype=torch.int64)
        values = scores.new_empty(scores.shape[0])
        graph_break(_find, scores, columns, values)
        return columns, values
    return best_scores_reference(scores)


def best_scores_reference(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    columns = scores.argmax(1)
    return columns, scores.gather(1, columns[:, None]).squeeze(1)


def _find(scores: torch.Tensor, columns: torch.Tensor, values: torch.Tensor) -> None:
    from outrider.ops.compiled.best_of_rows import PART_SCORES, find_best_scores
    from outrider.ops.compiled.thread_team import run_team

    assert scores.stride(1) == 1, "unit stride along the vocabulary"
    rows, width = scores.shape
    if not rows:
        return
    parts = rows * -(-width // PART_SCORES)
    of_parts, places = torch.empty(parts), torch.empty(parts, dtype=torch.int64)
    tensors = scores, of_parts, places, columns, values
    sizes = rows, width, scores.stride(0)
    run_team(int(find_best_scores.address), (*sizes, *(each.data_ptr() for each in tensors)))
