"""How much the steps of a runner will draft: the shapes to capture at start depend on it."""

from dataclasses import replace
from functools import partial

from outrider.config.settings import ExecutionSettings
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.warmup import Rungs
from outrider.step.buckets import Buckets
from outrider.wire.draft_budget import (
    FEWEST_SHARING,
    PLAIN_RUNG,
    Rung,
    ladder_of,
    whole_rung,
)
from outrider.wire.runner_facts import DraftFacts


def draft_facts(draft: DraftKind, buckets: Buckets) -> DraftFacts:
    """Rows can share drafts only in steps that can be ragged."""
    return replace(draft.facts, is_ranked=draft.facts.is_ranked and buckets.is_ragged)


def rungs_of(draft: DraftKind, buckets: Buckets, execution: ExecutionSettings) -> Rungs:
    """How much steps will draft; a prefill server has no decode rows."""
    return partial(_rungs, draft_facts(draft, buckets)) if execution.can_decode else lambda _: ()


def _rungs(draft: DraftFacts, num_rows: int) -> tuple[Rung, ...]:
    """How much steps with so many rows will draft."""
    if draft.is_adaptive:
        is_shared = draft.is_ranked and num_rows >= FEWEST_SHARING
        return ladder_of(draft.budget, is_shared=is_shared)
    return whole_rung(draft.budget), PLAIN_RUNG
