"""An engine whose prompts can count as cached, and a draft kind that stores the pools."""

from collections.abc import Sequence

from outrider.bench.policy_engine import PolicyEngine
from outrider.kv.kv_pool import PageFamily
from outrider.models.model_config import AnyAttention
from outrider.runtime.draft_kinds import DraftKind, DraftRoom
from outrider.spec.drafter import Drafter
from outrider.wire.runner_facts import DraftFacts


class BenchEngine(PolicyEngine):
    """An engine whose prompts can be marked as cached."""

    def pretend_cached(self, tokens: tuple[int, ...]) -> None:
        """Give these tokens pages of their own in the prefix cache; the pages are not written."""
        cache = self._scheduler.cache
        lease = cache.open(tokens)
        cache.extend(lease, len(tokens))
        for start in range(lease.cached, len(tokens), cache.page_size):  # as chunks would run
            cache.slide(lease, oldest=start, num_tokens=start + cache.page_size)
        cache.close(lease, tokens)


class DraftWithPools:
    """A draft kind that stores the pools of its drafter."""

    def __init__(self, kind: DraftKind) -> None:
        self._kind = kind
        self._pages: PageFamily | None = None  # set by build

    @property
    def facts(self) -> DraftFacts:
        return self._kind.facts

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self._kind.attention

    @property
    def pages(self) -> PageFamily:
        assert self._pages is not None, "the runner builds the drafter first"
        return self._pages

    def build(self, room: DraftRoom) -> Drafter:
        self._pages = room.cache.pages
        return self._kind.build(room)
