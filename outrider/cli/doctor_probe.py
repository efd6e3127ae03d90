"""The acceptance probe of `outrider doctor`: lets a head draft, and explains the result."""

from collections.abc import Iterator

from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import Auto, Dtype
from outrider.frontend.draft_probe import Probe, run_probe
from outrider.frontend.llm import LLM

STEPS = 5  # draft positions that are probed, unless the drafter has fewer
MAX_TOKENS = 32  # of each answer


def probe(model: str, drafter: str, *, steps: int, dtype: Dtype | Auto, device: str) -> Probe:
    """Answer the prompts greedily, with the head or the modules as drafter."""
    # Adaptive drafting could stop drafting, and the check at load would probe twice.
    draft = DraftConfig(drafter=drafter, steps=steps, topk=1, adaptive=False, check=False)
    llm = LLM(model, draft=draft, dtype=dtype, device=device)
    return run_probe(llm.frontend, steps=steps, max_tokens=MAX_TOKENS)


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
