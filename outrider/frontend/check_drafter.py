"""The check at load: a drafter whose first drafts are never accepted is reported in one line.

Such a drafter loads without an error (capture layers in another order, a missing scale, another
target) and only makes decoding slower.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outrider.config.draft_config import NONE, TEXT_DRAFTERS, DraftConfig
from outrider.engine.parallel_engine import AnyEngine
from outrider.errors import CapacityError, OutriderError
from outrider.frontend.draft_probe import Probe, run_probe
from outrider.frontend.frontend import Frontend
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, load_tokenizer
from outrider.wire.runner_facts import RunnerFacts

_MAX_TOKENS = 16  # of each answer: a second of a small model on two cores
_FEWEST_ROUNDS = 8  # fewer prove nothing: a model may end its answers at once

_log = logging.getLogger(__name__)


def check_drafter(
    draft: DraftConfig,
    facts: RunnerFacts,
    tokenizer_folder: Path,
    open_engine: Callable[[RunnerFacts], AnyEngine],
) -> None:
    """Draft a few prompts, and log what came of it. Nothing is refused.

    The engine that runs them is dropped afterwards: its counters and cached prefixes are not those
    of users. Adaptive drafting is off, because it depends on the speed of the machine.
    """
    if not draft.check or draft.drafter in (NONE, *TEXT_DRAFTERS):
        return
    tokenizer = load_tokenizer(tokenizer_folder)
    if isinstance(tokenizer, NoTokenizer):
        return
    steady = replace(facts.draft, is_adaptive=False, is_paced=False)
    engine, began_s = open_engine(replace(facts, draft=steady)), time.monotonic()
    try:
        probe = run_probe(Frontend(engine, tokenizer), steps=1, max_tokens=_MAX_TOKENS)
    except OutriderError as error:  # a tokenizer of another model, or a context of a few tokens
        _log.info("the drafter was not checked: %s", error)
        return
    finally:
        while engine.has_work:  # steps in flight when the last answer was complete
            engine.step()
    if engine.is_over:
        raise CapacityError("the device failed while the drafter was checked; see the log")
    _report(draft.drafter, probe, seconds=time.monotonic() - began_s)


def _report(drafter: str, probe: Probe, *, seconds: float) -> None:
    (share, _), *_ = probe.rates()
    if probe.is_misread and probe.rounds >= _FEWEST_ROUNDS:
        _log.warning(
            "note: %s is useless with this model: %.0f%% of its first drafts are accepted on "
            "built-in prompts, and one that fits reaches over half; `outrider doctor` names the "
            "likely causes, --draft none decodes without it",
            drafter,
            100 * share,
        )
    elif probe.is_poor and probe.rounds >= _FEWEST_ROUNDS:
        _log.warning(
            "note: %.0f%% of the first drafts of %s are accepted on built-in prompts, and one that "
            "fits mostly reaches over half; `outrider doctor` compares its layers and scales",
            100 * share,
            drafter,
        )
    else:
        _log.info(
            "%.0f%% of the first drafts in %d rounds of built-in prompts are accepted (%.1f s)",
            100 * share,
            probe.rounds,
            seconds,
        )
