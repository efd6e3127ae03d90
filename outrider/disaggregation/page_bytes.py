"""The pages of an engine as bytes: what a transfer reads and writes."""

from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import PageFamily


class PageBytes:
    """All page tensors of the target and the drafter. Pages of a tensor have the same length."""

    def __init__(self, pages: PageFamily) -> None:
        tensors = [each for each in pages.page_tensors if each.numel()]
        self.num_pages = pages.num_pages
        self.layout = [f"{each.dtype}{list(each.shape[1:])}" for each in tensors]
        self.parts = [each.flatten(1).view(torch.uint8) for each in tensors]  # [pages, bytes] each

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all tensors."""
        return sum(part.shape[1] for part in self.parts)

    def read(self, part: int, pages: Sequence[int]) -> torch.Tensor:  # [n, bytes] on the host
        """The bytes of some pages in one tensor."""
        tensor = self.parts[part]
        index = torch.tensor(pages, dtype=torch.int64, device=tensor.device)
        return tensor.index_select(0, index).cpu()

    def write(self, part: int, pages: Sequence[int], values: torch.Tensor) -> None:
        """Store bytes [n, bytes] from the host, and return when they are there."""
        tensor = self.parts[part]
        index = torch.tensor(pages, dtype=torch.int64, device=tensor.device)
        tensor.index_copy_(0, index, values.to(tensor.device))
        tensor[pages[0], :1].cpu()  # waits for the device
