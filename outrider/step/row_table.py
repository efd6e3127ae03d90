"""Device tables with one entry per live request. Row 0 is padding: empty and on page 0."""

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import PageGrant, RowAdmission


class RowTable:
    """Owns true lengths, last tokens, adapter slots, shifts of rotary positions and page tables.

    The host knows upper bounds of lengths.
    """

    def __init__(self, *, max_rows: int, max_pages: int, device: torch.device) -> None:
        size = max_rows + 1
        self.lengths = torch.zeros(size, dtype=torch.int64, device=device)  # cached tokens: L
        self.last_tokens = torch.zeros(size, dtype=torch.int64, device=device)  # at position L
        self.adapters = torch.zeros(size, dtype=torch.int64, device=device)  # slots, 0 for none
        self.shifts = torch.zeros(size, dtype=torch.int64, device=device)  # of rotary positions
        self.pages = torch.zeros(size, max_pages, dtype=torch.int64, device=device)

    def admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        """Clear the page tables of rows: the old pages may belong to another request now."""
        if admissions:
            rows = [admission.row for admission in admissions]
            slots = [admission.adapter_slot for admission in admissions]
            shifts = [admission.shift for admission in admissions]
            entries = upload([*rows, *slots, *shifts], torch.int64, self.pages.device).view(3, -1)
            self.pages.index_fill_(0, entries[0], 0)
            self.adapters.index_copy_(0, entries[0], entries[1])
            self.shifts.index_copy_(0, entries[0], entries[2])

    def grant(self, grants: tuple[PageGrant, ...]) -> None:
        """Append pages to the tables of their rows."""
        if grants:
            entries = upload(self.entries(grants), torch.int64, self.pages.device)
            self.place(entries.view(2, -1))

    def entries(self, grants: tuple[PageGrant, ...]) -> list[int]:
        """The index of each granted page in the flat page tables; then the page ids."""
        width = self.pages.shape[1]
        index = [
            grant.row * width + grant.first + offset
            for grant in grants
            for offset in range(len(grant.pages))
        ]
        return index + [page for grant in grants for page in grant.pages]

    def place(self, entries: torch.Tensor) -> None:  # [2, n] from `entries`
        """Write page ids into the tables of their rows."""
        self.pages.view(-1).index_copy_(0, entries[0], entries[1])
