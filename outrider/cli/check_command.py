"""`outrider check`: tests that speculation changes no token of this model on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench_flags import open_model
from outrider.cli.check.start_load_check import check_load
from outrider.cli.flags import DraftFlags, expand_flags
from outrider.cli.model_flags import ModelFlags
from outrider.config.draft_config import AUTO, MTP, NONE, DraftConfig
from outrider.config.engine_config import Auto, Executor
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
    limit: Annotated[
        int | None,
        typer.Option(help="Take this many prompts; default: 2 of ours, 4 thoroughly.", min=1),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Length of every answer; default: 16, 32 thoroughly.", min=1)
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Every executor, with and without overlap.")
    ] = False,
    load: Annotated[
        int,
        typer.Option(help="Instead: so many prompts under load, twice, with preemptions.", min=0),
    ] = 0,
) -> None:
    """Compare drafted answers with plain ones, token by token; exit code 1 if any differ."""
    from outrider.bench.texts import read_texts
    from outrider.cli.check.check_cases import PROMPTS, QUICK_SAMPLINGS, SAMPLINGS
    from outrider.frontend.batch_bar import batch_bar

    draft = _drafting(draft_flags.config(), model_flags.model)
    if load:
        check_load(model_flags, draft, prompts, count=load, max_tokens=max_tokens or 128)
        return
    texts = PROMPTS if prompts is None else read_texts(prompts)
    chosen = model_flags.chosen_executor

    import_torch()
    from outrider.cli.check.check_table import print_findings
    from outrider.cli.check.run_check import CheckWork, run_check  # imports torch

    work = CheckWork(
        prompts=texts[: limit or (4 if thorough else 2)],
        samplings=tuple(SAMPLINGS) if thorough else QUICK_SAMPLINGS,
        max_tokens=max_tokens or (32 if thorough else 16),
    )
    tried = _configurations(draft, model_flags, chosen, thorough=thorough)

    load_engine = _loader(model_flags, max_num_seqs=max(2, len(work.prompts)))
    with batch_bar(work.num_requests(len(tried))) as advance:
        is_equal = print_findings(run_check(tried, work, load_engine, advance))
    if not is_equal:
        raise typer.Exit(1)


def _drafting(draft: DraftConfig, model: str) -> DraftConfig:
    """The drafter, if there is one."""
    from outrider.frontend.find_drafter import has_drafter

    is_plain = draft.drafter == AUTO and not has_drafter(model, open_model(model))
    if is_plain or draft.drafter == NONE:
        raise ConfigError("there is nothing to check without a drafter; name one with --draft")
    return draft


def _loader(flags: ModelFlags, *, max_num_seqs: int) -> Callable[["Configuration"], "LLM"]:
    """Builds the engine of a configuration."""
    return lambda configuration: flags.load(
        configuration.draft,
        executor=configuration.executor,
        depth=configuration.depth,
        max_num_seqs=max_num_seqs,
    )


def _configurations(
    draft: DraftConfig, flags: ModelFlags, executor: Executor | Auto, *, thorough: bool
) -> tuple["Configuration", ...]:
    """The engines that are compared with plain decoding: the usual ones of the device, or all."""
    from outrider.cli.check.check_cases import configurations
    from outrider.cli.check.run_check import executors_on, usual_depth, usual_executor

    executors: tuple[Executor, ...] = (usual_executor(flags.device),)
    if executor != "auto":
        executors = (executor,)
    elif thorough:
        executors = executors_on(flags.device)
    depths = (0, 1) if thorough else (usual_depth(flags.device),)
    has_trees = _has_trees(flags.model, draft.drafter)
    return tuple(configurations(draft, executors, depths, has_trees=has_trees))


def _has_trees(model: str, drafter: str) -> bool:
    """Whether trees can be checked. Some targets, and several MTP modules, only have chains."""
    from outrider.runtime.inspect_target import checks_trees, examine_modules

    folder = open_model(model)
    return checks_trees(folder) and (drafter != MTP or examine_modules(folder).num == 1)
