"""How a scheduler asks how much a step may draft, and the policy that sets no limit."""

from dataclasses import dataclass
from typing import Protocol

from outrider.wire.draft_budget import UNBOUNDED, Rung, whole_rung

_WHOLE = whole_rung(UNBOUNDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step runs."""

    num_rows: int  # that decode
    num_query: int  # query tokens of these rows
    num_prompt: int  # tokens of prompts


class DraftPolicy(Protocol):
    """Bounds the draft budgets of a step by what earlier steps cost and emitted."""

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        """How much this step with about `num_prompt` prompt tokens may draft."""
        ...

    def settle(self, step: int, load: StepLoad) -> None:
        """What the step really runs."""
        ...

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        """A step is complete. One without decode rows emitted 0."""
        ...


class WholeBudget:
    """Every row uses its whole budget."""

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        del step, num_rows, num_prompt
        return _WHOLE

    def settle(self, step: int, load: StepLoad) -> None:
        pass

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        pass
