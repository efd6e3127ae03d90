"""Predictions lie at the end of their rows, behind the last tokens of the prompt."""

import torch

from outrider.spec.text_table import PredictionTable
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import RowAdmission


def admitted(prompt, prediction, *, width=6, tail=2):
    table = PredictionTable(rows=2, width=width, tail=tail, device=torch.device("cpu"))
    for predicted in ((9,) * width, prediction):  # the row had another owner before
        sampling = RowSampling(seed=0, prediction=predicted)
        table.admit([RowAdmission(row=1, sampling=sampling, prompt=prompt, output=())])
    return table.read(torch.tensor([1]))[0].tolist()


def test_a_prediction_follows_as_many_prompt_tokens_as_the_tail_has():
    assert admitted((1, 2, 3, 4), (7, 8)) == [-1, -1, 3, 4, 7, 8]


def test_a_prediction_that_is_too_long_is_cut_at_its_end():
    assert admitted((1, 2, 3, 4), (5, 6, 7, 8, 9)) == [3, 4, 5, 6, 7, 8]


def test_a_row_without_a_prediction_keeps_nothing_of_its_former_owner():
    assert admitted((1, 2, 3), ()) == [-1] * 6
