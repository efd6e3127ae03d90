"""Lets a drafter draft built-in prompts, and counts how many of its drafts are accepted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.errors import CapacityError
from outrider.frontend.frontend import Frontend
from outrider.frontend.outputs import Acceptance
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate

# Share of first drafts accepted, even with a poor head. The shipped head has 0.53 here, and 0.14
# with its capture layers in reverse order.
LOWEST_FIRST = 0.25
# Below this a head may fit. One whose projections lost a scale has 0.35 to 0.47 (docs/heads.md).
USUAL_FIRST = 0.4
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, and explain its running time.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Think step by step.",
    "Summarise in two sentences why the sky is blue during the day and red in the evening.",
    "Give me three tips for learning to play the piano as an adult.",
    "Translate into French: The rider goes ahead and the party confirms the road.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
)


@dataclass(frozen=True, slots=True)
class AnsweredText:
    """Token ids of a prompt, and what the target answered."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How often the draft at each position was accepted, over all prompts."""

    rounds: int
    accepted_per_position: tuple[int, ...]  # position 0 is the first draft of a round
    texts: tuple[AnsweredText, ...] = ()

    def rates(self) -> Iterator[tuple[float, float]]:
        """For each position: the share of all rounds, and of those that accepted the one before."""
        before = self.rounds
        for accepted in self.accepted_per_position:
            yield accepted / max(self.rounds, 1), accepted / max(before, 1)
            before = accepted

    @property
    def accept_length(self) -> float:
        return 1.0 + sum(self.accepted_per_position) / max(self.rounds, 1)

    @property
    def is_poor(self) -> bool:
        """Whether fewer first drafts are accepted than with most heads that fit."""
        return self.accepted_per_position[0] < USUAL_FIRST * self.rounds

    @property
    def is_misread(self) -> bool:
        """Whether so few first drafts are accepted that the head must be loaded wrongly."""
        return self.accepted_per_position[0] < LOWEST_FIRST * self.rounds


def run_probe(
    frontend: Frontend,
    *,
    steps: int,
    max_tokens: int,
) -> Probe:
    """Answer the prompts greedily, all at once; counts are of the first `steps` positions."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, truncate_prompt_tokens=-1)
    prepared = [frontend.inputs.prepare(_rendered(frontend, each), params) for each in PROMPTS]
    measured: list[Acceptance] = []
    texts: list[AnsweredText] = []
    for _, done in Feed(frontend, enumerate(prepared), max_in_flight=len(prepared)):
        if not isinstance(done, RequestState):
            raise CapacityError(f"the probe of the drafter could not run: {done}")
        output = done.output()
        measured.append(output.outputs[0].acceptance)
        texts.append(
            AnsweredText(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids))
        )
    return Probe(
        rounds=sum(each.rounds for each in measured),
        accepted_per_position=_summed([each.kept_per_position for each in measured], steps),
        texts=tuple(texts),
    )


def _rendered(frontend: Frontend, prompt: str) -> TextPrompt:
    if isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
        return TextPrompt(prompt)
    return frontend.inputs.render([{"role": "user", "content": prompt}])


def _summed(counts: Sequence[Sequence[int]], steps: int) -> tuple[int, ...]:
    """The sum at every probed position; an answer may have counts for fewer positions."""
    return tuple(sum(each[i] for each in counts if i < len(each)) for i in range(steps))
