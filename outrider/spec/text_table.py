"""The text of every row on the device, prompt and output, for drafters that search it."""

from collections.abc import Sequence

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import RowAdmission


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
