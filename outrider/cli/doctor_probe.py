"""The acceptance probe of `outrider doctor`: lets a head draft, and explains the result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.config.engine_config import Auto, Dtype
from outrider.frontend.llm import LLM
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate

STEPS = 5  # draft positions that are probed, unless the drafter has fewer
MAX_TOKENS = 32  # of each answer
LOWEST_FIRST = 0.15  # share of first drafts accepted, even with a poor head
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, and explain its running time.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Think step by step.",
    "Summarise in two sentences why the sky is blue during the day and red in the evening.",
    "Give me three tips for learning to play the piano as an adult.",
    "Translate into French: The rider goes ahead and the party confirms the road.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How often the draft at each position was accepted, over all prompts."""

    rounds: int
    accepted_per_position: tuple[int, ...]  # position 0 is the first draft of a round

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
    def is_misread(self) -> bool:
        """Whether so few first drafts are accepted that the head must be loaded wrongly."""
        return self.accepted_per_position[0] < LOWEST_FIRST * self.rounds


def probe(model: str, drafter: str, *, steps: int, dtype: Dtype | Auto, device: str) -> Probe:
    """Answer the prompts greedily, with the head or the modules as drafter."""
    llm = LLM(model, draft=drafter, steps=steps, topk=1, dtype=dtype, device=device)
    greedy = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    if isinstance(llm.get_tokenizer().chat_template, NoChatTemplate):
        outputs = llm.generate(PROMPTS, greedy, use_tqdm=False)
    else:
        messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        outputs = llm.chat(messages, greedy, use_tqdm=False)
    measured = [output.outputs[0].acceptance for output in outputs]
    return Probe(
        rounds=sum(each.rounds for each in measured),
        accepted_per_position=_summed([each.kept_per_position for each in measured], steps),
    )


def _summed(counts: Sequence[Sequence[int]], steps: int) -> tuple[int, ...]:
    """The sum at every probed position; an answer may have counts for fewer positions."""
    return tuple(sum(each[i] for each in counts if i < len(each)) for i in range(steps))


def explain(probe: Probe) -> Iterator[str]:
    """The meaning of the probe, in sentences."""
    if not probe.is_misread:
        yield f"mean accept length {probe.accept_length:.2f} tokens per round"
        return
    share = probe.accepted_per_position[0] / max(probe.rounds, 1)
    yield (
        f"position 0 is accepted in {share:.1%} of rounds. A head that fits reaches over half, "
        "so this one does not see what it was trained on. The usual causes, likeliest first (of "
        "modules inside the model only the second: a fine-tune that left them as they were):"
    )
    yield (
        "1. Capture layers off by one. A list at the top level of config.json means 'after k "
        "layers', one inside eagle_config means 'output of layer k'. Compare 'captures' above "
        "with the training run; move the list to the other place if it was copied."
    )
    yield (
        "2. Another target. A fine-tune, or base against instruct, has other states under equal "
        "shapes. Pass the very model that the head was trained on."
    )
    yield (
        "3. A norm that the config forgot: norm_before_residual, fc_norm, norm_before_fc. Compare "
        "'variant' above with the training run."
    )
    yield (
        "4. Rotation. The head runs with its own rope settings; when its config.json lacks "
        "rope_theta, that is 10000."
    )
    yield (
        "If only positions after the first are poor, look at norm_output instead: it decides "
        "which state is handed on."
    )
