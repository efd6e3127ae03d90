"""The draft policy of an engine."""

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.draft_policy import DraftPolicy, WholeBudget
from outrider.wire.runner_facts import DraftFacts


def make_policy(draft: DraftFacts) -> DraftPolicy:
    """What `--adaptive` says."""
    if not draft.is_adaptive:
        return WholeBudget()
    return Adaptation(draft.budget, is_shared=draft.is_ranked, costs=draft.costs)
