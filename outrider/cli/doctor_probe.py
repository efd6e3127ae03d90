"""The acceptance probe of `outrider doctor`: lets a head draft, and explains the result."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.head_likelihood import HeadLikelihood
from outrider.config.draft_config import MTP, DraftConfig
from outrider.config.engine_config import Auto, Dtype
from outrider.frontend.draft_probe import Probe, run_probe
from outrider.frontend.llm import LLM
from outrider.runtime.inspect_target import fitting_module_steps, fitting_steps
from outrider.wire.runner_facts import WeightStorage

STEPS = 5  # draft positions that are probed, unless the drafter has fewer
MAX_TOKENS = 32  # of each answer
SURE = 3.0  # standard errors by which other layers must be better
UNSURE = 0.2  # of the share of right drafts; the shipped head is within 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedModel:
    """What the probe found, and how the target was loaded for it."""

    probe: Probe
    weights: tuple[WeightStorage, ...]
    device: str


def most_steps(target: Path, drafter: str) -> int:
    """Draft positions that are probed."""
    if drafter == MTP:
        return fitting_module_steps(target, STEPS)
    return fitting_steps(Path(drafter), STEPS)


def probe(model: str, drafter: str, *, steps: int, dtype: Dtype | Auto, device: str) -> ProbedModel:
    """Answer the prompts greedily, with the head or the modules as drafter."""
    # Adaptive drafting could stop drafting, and the check at load would probe twice.
    draft = DraftConfig(drafter=drafter, steps=steps, topk=1, adaptive=False, check=False)
    llm = LLM(model, draft=draft, dtype=dtype, device=device)
    found = run_probe(llm.frontend, steps=steps, max_tokens=MAX_TOKENS)
    return ProbedModel(probe=found, weights=llm.weight_storage, device=llm.device)


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


def explain_likelihood(found: HeadLikelihood) -> Iterator[str]:
    """What the head thinks of the target's tokens, and whether other layers would fit better."""
    others = ", ".join(f"{_spoken(each.shift)} {each.mean:.2f}" for each in found.shifts)
    yield (
        f"log-probability of {found.num_tokens} tokens of the target: {found.mean:.2f}"
        + (f"; with every captured layer {others}" if others else "")
    )
    for each in found.shifts:
        if each.t > SURE:
            yield (
                f"note: with every captured layer {_spoken(each.shift)} the head fits better (by "
                f"{each.t:.1f} standard errors). Its capture layers are off by one: see the two "
                "meanings of a layer id in docs/heads.md."
            )
    if abs(found.sureness - found.share) > UNSURE:
        yield (
            f"note: the head is sure of its drafts by {found.sureness:.0%} on average, and "
            f"{found.share:.0%} are right. A head that fits knows how often it is right: a scale "
            "of its weights may be missing, or its norms differ from the training run."
        )


def _spoken(shift: int) -> str:
    return "one lower" if shift < 0 else "one higher"
