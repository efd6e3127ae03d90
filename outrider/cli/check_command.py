"""`outrider check`: tests that speculation changes no token of this model on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.flags import DraftFlags, ModelFlags, expand_flags
from outrider.config.draft_config import AUTO, MTP, NONE
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch

if TYPE_CHECKING:
    from outrider.cli.check.check_cases import Configuration
    from outrider.frontend.llm import LLM


@expand_flags
def check(
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file of prompts; default: four of ours.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Take this many prompts.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.", min=1)] = 32,
) -> None:
    """Compare drafted answers with plain ones, token by token; exit code 1 if any differ."""
    from outrider.bench.texts import read_texts
    from outrider.cli.check.check_cases import PROMPTS, configurations
    from outrider.frontend.find_drafter import has_drafter

    draft, executor = draft_flags.config(), model_flags.chosen_executor
    is_plain = draft.drafter == AUTO and not has_drafter(model_flags.model)
    if is_plain or draft.drafter == NONE:
        raise ConfigError("there is nothing to check without a drafter; name one with --draft")
    texts = (PROMPTS if prompts is None else read_texts(prompts))[:limit]

    from outrider.frontend.batch_bar import batch_bar

    import_torch()
    from outrider.cli.check.check_table import print_findings
    from outrider.cli.check.run_check import (  # imports torch
        CheckWork,
        executors_on,
        run_check,
    )

    def load(configuration: "Configuration") -> "LLM":
        return model_flags.load(
            configuration.draft,
            executor=configuration.executor,
            depth=configuration.depth,
            max_num_seqs=max(2, len(texts)),
        )

    has_trees = _has_trees(model_flags.model, draft.drafter)
    executors = executors_on(model_flags.device) if executor == "auto" else (executor,)
    tried = tuple(configurations(draft, executors, has_trees=has_trees))
    work = CheckWork(prompts=texts, max_tokens=max_tokens)
    with batch_bar(work.num_requests(len(tried))) as advance:
        findings = list(run_check(tried, work, load, advance))
    print_findings(findings)
    if any(finding.mismatches for finding in findings):
        raise typer.Exit(1)


def _has_trees(model: str, drafter: str) -> bool:
    """Whether trees can be checked. Some targets, and several MTP modules, only have chains."""
    from outrider.hub.download_bars import BarReporter
    from outrider.hub.resolve_model import resolve_model
    from outrider.runtime.inspect_target import checks_trees, examine_modules

    folder = resolve_model(model, BarReporter())
    return checks_trees(folder) and (drafter != MTP or examine_modules(folder).num == 1)
