"""The text of every row on the device, prompt and output, for drafters that look into it."""

from collections.abc import Sequence

import torch

from outrider.wire.batch import RowAdmission


class TextTable:
    """Owns the tokens of each row. What lies past a row's last token is stale and never read.

    The columns before position 0 hold -1, which is no token: a comparison may run off the text.
    """

    def __init__(self, *, rows: int, reach: int, margin: int, device: torch.device) -> None:
        self._margin = margin
        self._tokens = torch.full((rows, margin + reach), -1, dtype=torch.int32, device=device)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Give rows to new owners, whose text is known up to where they decode."""
        for admission in admissions:
            text = torch.tensor(admission.prompt + admission.output, dtype=torch.int32)
            self._tokens[admission.row, self._margin : self._margin + text.shape[0]].copy_(text)

    def read(self, rows: torch.Tensor, width: int) -> torch.Tensor:  # [rows] -> [rows, columns]
        """The margin and the first `width` positions of some rows."""
        return self._tokens[:, : self._margin + width].index_select(0, rows)

    def write(
        self,
        rows: torch.Tensor,  # [rows]
        positions: torch.Tensor,  # [rows, count]
        tokens: torch.Tensor,  # [rows, count]
    ) -> None:
        """Store tokens at their positions. Padding writes to row 0, which nobody reads."""
        columns = self._margin + positions
        self._tokens.index_put_((rows[:, None], columns), tokens.to(torch.int32))
