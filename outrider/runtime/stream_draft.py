"""The kind of drafter that is a module inside DeepSeek-V4, with rings of its own."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.attention.compressed import CompressedAttention
from outrider.config.engine import Arithmetic, Dtype
from outrider.memory.compressed import CompressedPool
from outrider.models.config import AnyAttention
from outrider.models.v4.decoder import V4Decoder
from outrider.models.v4.module import V4Module, count_v4_modules, load_v4_module
from outrider.runtime.drafts import DraftRoom, ModelDraft
from outrider.spec.drafter import Drafter
from outrider.spec.model_drafter import ModelDrafter
from outrider.wire.speculation import Budget
from outrider.wire.worker import DraftFacts

_log = logging.getLogger(__name__)


def load_stream_draft(
    folder: Path,
    target: V4Decoder,
    *,
    budget: Budget,
    dtype: Dtype,
    arithmetic: Arithmetic,
    is_adaptive: bool,
) -> "StreamDraft":
    """The first module in the target's own folder, for chains of this budget."""
    found = count_v4_modules(folder)
    if found > 1 or budget.steps > 1:
        _log.info("of %d draft modules one is run, %d times", found, budget.steps)
    model = load_v4_module(folder, target, dtype=dtype, arithmetic=arithmetic)
    return StreamDraft(model=model, budget=budget, is_adaptive=is_adaptive)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDraft:
    """One module, run once for every step of a chain."""

    model: V4Module
    budget: Budget
    is_adaptive: bool = False

    @property
    def facts(self) -> DraftFacts:
        """Those of any draft model: it is one."""
        usual = ModelDraft(model=self.model, budget=self.budget, is_adaptive=self.is_adaptive)
        return usual.facts

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return ()  # it attends in its own way

    def build(self, room: DraftRoom) -> Drafter:
        device, rows = room.sampling.seed.device, room.sampling.seed.shape[0]
        # What a round drafts is stored after what is cached, like the chain that is checked.
        layout = self.model.layout(page_size=room.target.page_size, nodes=self.budget.nodes)
        pool = CompressedPool(
            layout, table_rows=rows, num_pages=room.pages.num_pages, device=device
        )
        return ModelDrafter(
            self.model,
            kv=room.pages.adopt(pool),
            attention=CompressedAttention(layout, table_rows=rows),
            sampling=room.sampling,
            facts=self.facts,
            largest=room.largest,
        )
