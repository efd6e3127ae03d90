"""Device tables with one entry per live request. Row 0 is padding: empty and on page 0."""

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import PageGrant, RowAdmission


class RowTable:
    """Owns true lengths, last tokens, adapter slots, shifts of rotary positions and page tables.

    The host knows upper bounds of lengths. Window tables hold the pages of layers with a sliding
    window. Entries behind the window are outdated: such pages may belong to another row.
    """

    def __init__(
        self, *, max_rows: int, max_pages: int, device: torch.device, has_windows: bool = False
    ) -> None:
        size, num_tables = max_rows + 1, 2 if has_windows else 1
        self.lengths = torch.zeros(size, dtype=torch.int64, device=device)  # cached tokens: L
        self.last_tokens = torch.zeros(size, dtype=torch.int64, device=device)  # at position L
        self.adapters = torch.zeros(size, dtype=torch.int64, device=device)  # slots, 0 for none
        self.shifts = torch.zeros(size, dtype=torch.int64, device=device)  # of rotary positions
        self._tables = torch.zeros(num_tables, size, max_pages, dtype=torch.int64, device=device)
        self.pages = self._tables[0]
        # [table_rows, 0] where all layers have the same pages
        self.window_pages = self._tables[1] if has_windows else self.pages[:, :0]

    @property
    def num_entries(self) -> int:
        """Of all page tables."""
        return self._tables.numel()

    def admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        """Clear the page tables of rows: the old pages may belong to another request now."""
        if admissions:
            rows = [admission.row for admission in admissions]
            slots = [admission.adapter_slot for admission in admissions]
            shifts = [admission.shift for admission in admissions]
            entries = upload([*rows, *slots, *shifts], torch.int64, self.pages.device).view(3, -1)
            self._tables.index_fill_(1, entries[0], 0)
            self.adapters.index_copy_(0, entries[0], entries[1])
            self.shifts.index_copy_(0, entries[0], entries[2])

    def forget(self) -> None:
        """No row has a request."""
        for table in (self._tables, self.lengths, self.last_tokens, self.adapters, self.shifts):
            table.zero_()

    def grant(self, grants: tuple[PageGrant, ...]) -> None:
        """Append pages to the tables of their rows."""
        if grants:
            entries = upload(self.entries(grants), torch.int64, self.pages.device)
            self.place(entries.view(2, -1))

    def entries(
        self, grants: tuple[PageGrant, ...], window_grants: tuple[PageGrant, ...] = ()
    ) -> list[int]:
        """The index of each granted page in the flat page tables; then the page ids."""
        index: list[int] = []
        for first, granted in ((0, grants), (self.pages.numel(), window_grants)):
            for grant in granted:
                start = first + grant.row * self.pages.shape[1] + grant.first
                index += range(start, start + len(grant.pages))
        return index + [page for grant in (*grants, *window_grants) for page in grant.pages]

    def place(self, entries: torch.Tensor) -> None:  # [2, n] from `entries`
        """Write page ids into the tables of their rows."""
        self._tables.view(-1).index_copy_(0, entries[0], entries[1])
