"""Which rung a step with prompts uses, by the price of its tokens.

Prompts are read whatever is drafted. Beside them drafts are dearer, because the step is no longer
bound by reading weights. A draft is worth the time that its tokens would take later, in other
steps; so it pays if it adds less than that to this step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.cost_curve import CostCurve

_LEAST_SHARE = 0.05  # of a step that rows take at least, whatever its prompts are said to take


@dataclass(frozen=True, slots=True, kw_only=True)
class RungValue:
    """What a rung emits and takes in steps without prompts."""

    rung: int
    nodes: int  # query tokens of a row
    emitted: float  # tokens of a row
    seconds: float


class BesidePrompts:
    """Reads the cost curve."""

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve

    def choose(
        self, values: Sequence[RungValue], size: BatchSize, *, num_rows: int, num_prompt: int
    ) -> int:
        """The rung that is worth most in a step with so many prompt tokens; of equals the first."""
        mean_prompt = size.prompt.value
        rate = max(self._usual_rate(each, num_rows, mean_prompt) for each in values)
        return max(values, key=lambda each: self._worth(each, num_rows, num_prompt, rate)).rung

    def _usual_rate(self, value: RungValue, num_rows: int, mean_prompt: float) -> float:
        """Tokens of all rows per second, in steps with as many prompt tokens as there usually are.

        Prompts cost what one more token costs there, each. That time is not of the rows.
        """
        num_tokens = num_rows * value.nodes
        seconds = value.seconds + self._curve.added_s(mean_prompt, beside=num_tokens)
        prompt_s = self._curve.token_s(num_tokens + mean_prompt) * mean_prompt
        return num_rows * value.emitted / max(seconds - prompt_s, _LEAST_SHARE * seconds)

    def _worth(self, value: RungValue, num_rows: int, num_prompt: int, rate: float) -> float:
        """Tokens of all rows, less those that other steps would emit in the time of this one."""
        beside = num_rows * value.nodes
        seconds = value.seconds + self._curve.added_s(num_prompt, beside=beside)
        return num_rows * value.emitted - rate * seconds
