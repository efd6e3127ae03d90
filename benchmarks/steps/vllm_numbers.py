"""Step times of vLLM 0.26 on an H200: measured once, bf16, prompts of 128 tokens."""

from dataclasses import dataclass

from benchmarks.steps.step_args import Case
from outrider.config.engine_config import Dtype

NAME = "vLLM 0.26"
NOTE = (
    "vLLM 0.26: FA3, full graphs, measured on an H200 with prompts of 128 tokens, not in this run"
)
_CARD, _BODY, _DTYPE, _PROMPT = "H200", "llama-8b", "bfloat16", 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStep:
    """Time of one step or iteration, and the tokens that it emits."""

    step_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """The facts that decide whether the peer's numbers are comparable."""

    model: str
    dtype: Dtype
    card: str  # the device as it calls itself


_PLAIN = {1: 4.88e-3, 8: 4.97e-3, 32: 5.42e-3, 64: 5.87e-3}  # by rows
# An EAGLE-3 head of 8B shape, chains of 5, acceptance length forced to 3.0.
_DRAFTING = {1: (7.49e-3, 400), 8: (7.84e-3, 3062), 32: (9.74e-3, 9860), 64: (14.4e-3, 13329)}


def plain_step(case: Case, subject: MeasuredModel) -> tuple[PeerStep, ...]:
    """vLLM's plain step in this case; empty if it was not measured."""
    if not _is_comparable(case, subject) or case.rows not in _PLAIN:
        return ()
    step_s = _PLAIN[case.rows]
    return (PeerStep(step_s=step_s, tokens_per_s=case.rows / step_s),)


def drafting_step(
    case: Case, subject: MeasuredModel, *, mean_emitted: float
) -> tuple[PeerStep, ...]:
    """vLLM's iteration with as many emitted tokens; empty if it was not measured."""
    is_known = mean_emitted == 3.0 and case.rows in _DRAFTING
    if not (is_known and _is_comparable(case, subject)):
        return ()
    step_s, tokens_per_s = _DRAFTING[case.rows]
    return (PeerStep(step_s=step_s, tokens_per_s=tokens_per_s),)


def _is_comparable(case: Case, subject: MeasuredModel) -> bool:
    ours = (subject.model, subject.dtype, case.prompt)
    return _CARD in subject.card and ours == (_BODY, _DTYPE, _PROMPT)
