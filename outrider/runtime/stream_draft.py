"""The kind of drafter that is a module inside DeepSeek-V4, with rings of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention
from outrider.models.deepseek_v4.v4_module import V4Module
from outrider.models.model_config import AnyAttention
from outrider.runtime.draft_kinds import DraftRoom, ModelDraft
from outrider.spec.drafter import Drafter
from outrider.spec.model_drafter import ModelDrafter
from outrider.wire.draft_budget import Budget
from outrider.wire.runner_facts import DraftFacts


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
