"""Starts a check under load: which prompts, which engines, and what is printed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from outrider.cli.model_flags import ModelFlags
from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch

if TYPE_CHECKING:
    from outrider.cli.check.load_check import LoadFinding
    from outrider.frontend.llm import LLM

_ROWS = 32  # unless --max-num-seqs says otherwise
_PLAIN_ROWS = 8  # of the plain answers, which nothing disturbs


def check_load(
    flags: ModelFlags, draft: DraftConfig, prompts: Path | None, *, count: int, max_tokens: int
) -> None:
    """Print what was compared; exit code 1 if an answer differs or no request was preempted."""
    from outrider.bench.texts import read_texts
    from outrider.frontend.batch_bar import batch_bar

    import_torch()
    from outrider.cli.check.load_check import LoadWork, numbered_prompts, run_load_check

    texts = numbered_prompts(count) if prompts is None else read_texts(prompts)[:count]
    work = LoadWork(prompts=texts, max_tokens=max_tokens, rows=flags.max_num_seqs or _ROWS)
    undisturbed = replace(flags, max_num_seqs=_PLAIN_ROWS, enable_prefix_caching=False)

    def load_tight(kv_tokens: int, longest: int) -> "LLM":
        tight = replace(flags, max_num_seqs=work.rows, kv_tokens=kv_tokens, max_context=longest)
        return tight.load(replace(draft, adaptive=True))

    with batch_bar(work.num_requests) as advance:
        found = run_load_check(work, lambda: undisturbed.load(NO_DRAFT), load_tight, advance)
    _print(found, work.rows)
    if not found.preemptions:
        raise ConfigError(
            "no request was preempted, so nothing is proved about it; use a larger --load"
        )
    if found.differences:
        raise typer.Exit(1)


def _print(found: "LoadFinding", rows: int) -> None:
    for prompt, difference in found.differences:
        print(f"prompt {prompt}: {difference}")
    print(
        f"{found.num_answers} answers, {found.num_tokens} tokens, {rows} at a time: "
        f"{len(found.differences)} differ from plain decoding; {found.preemptions} preemptions, "
        f"{found.cached_tokens} cached prompt tokens, {found.accept_length:.2f} tokens/round"
    )
