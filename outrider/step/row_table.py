"""Device tables with one entry per live request. Row 0 is padding: empty, on page 0, unchanging."""

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import PageGrant, RowAdmission


class RowTable:
    """Owns true lengths, last tokens and page tables; the host keeps only upper bounds of these."""

    def __init__(self, *, max_rows: int, max_pages: int, device: torch.device) -> None:
        size = max_rows + 1
        self.lengths = torch.zeros(size, dtype=torch.int64, device=device)  # cached tokens: L
        self.last_tokens = torch.zeros(size, dtype=torch.int64, device=device)  # at position L
        self.pages = torch.zeros(size, max_pages, dtype=torch.int64, device=device)

    def admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        """Forget the former owner: its pages may already belong to somebody else."""
        if admissions:
            rows = [admission.row for admission in admissions]
            self.pages.index_fill_(0, upload(rows, torch.int64, self.pages.device), 0)

    def grant(self, grants: tuple[PageGrant, ...]) -> None:
        """Append pages to the tables of their rows."""
        if grants:
            entries = upload(self.entries(grants), torch.int64, self.pages.device)
            self.place(entries.view(2, -1))

    def entries(self, grants: tuple[PageGrant, ...]) -> list[int]:
        """Where each granted page goes in the flat page tables; then, as many pages."""
        width = self.pages.shape[1]
        places = [
            grant.row * width + grant.first + index
            for grant in grants
            for index in range(len(grant.pages))
        ]
        return places + [page for grant in grants for page in grant.pages]

    def place(self, entries: torch.Tensor) -> None:  # [2, n] places and pages, as `entries` has
        """Write page ids into the tables of their rows."""
        self.pages.view(-1).index_copy_(0, entries[0], entries[1])
