"""The text of every row on the device, prompt, output and prediction, for drafters to search."""

from collections.abc import Sequence

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import RowAdmission


class PredictionTable:
    """Owns the predicted output of each row, which ends at the last column; -1 before it."""

    def __init__(self, *, rows: int, width: int, tail: int, device: torch.device) -> None:
        self._tokens = torch.full((rows, width), -1, dtype=torch.int32, device=device)
        self._tail = tail  # tokens of the prompt before a prediction: they lead to its begin

    @property
    def width(self) -> int:
        return self._tokens.shape[1]

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Store the predictions of new requests. One that is too long is cut at its end."""
        for admission in admissions:
            predicted = admission.sampling.prediction
            self._tokens[admission.row] = -1
            if predicted:
                known = (admission.prompt[-self._tail :] + predicted)[: self.width]
                text = upload(known, torch.int32, self._tokens.device)
                self._tokens[admission.row, self.width - len(known) :] = text

    def read(self, rows: torch.Tensor) -> torch.Tensor:  # [rows] -> [rows, width]
        """The predictions of some rows."""
        return self._tokens.index_select(0, rows)


class TextTable:
    """Owns the tokens of each row by position. Entries past a row's last token mean nothing."""

    def __init__(self, *, rows: int, reach: int, device: torch.device) -> None:
        self._tokens = torch.zeros(rows, reach, dtype=torch.int32, device=device)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Store the known text of new requests, cached or not."""
        for admission in admissions:
            text = upload(admission.prompt + admission.output, torch.int32, self._tokens.device)
            self._tokens[admission.row, : text.shape[0]] = text

    def read(self, rows: torch.Tensor, width: int) -> torch.Tensor:  # [rows] -> [rows, width]
        """The first `width` positions of some rows."""
        return self._tokens[:, :width].index_select(0, rows)

    def write(
        self,
        rows: torch.Tensor,  # [rows]
        positions: torch.Tensor,  # [rows, count]
        tokens: torch.Tensor,  # [rows, count]
    ) -> None:
        """Store tokens at their positions. Entries of row 0 are never read."""
        self._tokens.index_put_((rows[:, None], positions), tokens.to(torch.int32))
