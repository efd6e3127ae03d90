"""`outrider generate`: answers one prompt on the terminal, or a file of prompts."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.flags import DraftFlags, ModelFlags, SamplingFlags, expand_flags
from outrider.errors import ConfigError, RequestError


@expand_flags
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; else standard input.")] = None,
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    sampling_flags: SamplingFlags,
    n: Annotated[int, typer.Option("--n", help="Answers per prompt.")] = 1,
    logprobs: Annotated[int | None, typer.Option(help="Likeliest tokens in the JSON.")] = None,
    system: Annotated[str, typer.Option(help="System message.", show_default=False)] = "",
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    source: Annotated[
        Path | None, typer.Option("--input", help="JSONL file of prompts, messages or token ids.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="JSONL file of answers; resumed if it exists.")
    ] = None,
) -> None:
    """Answer a prompt, or every line of a file."""
    params, draft = sampling_flags.params(n=n, logprobs=logprobs), draft_flags.config()
    if raw and system:
        raise ConfigError("--raw uses no chat template, so it takes no --system; drop one of them")
    if logprobs is not None and not (as_json or target):
        raise ConfigError("--logprobs are only shown with --json or --output; add one of them")
    files = _batch_files(source, target)
    if files and (prompt is not None or as_json):
        raise ConfigError("--input takes the place of a prompt and of --json; leave those out")
    text = "" if files else _prompt_text(prompt)

    # These import torch, so wrong flags fail first.
    from outrider.cli import generate_answers as answers
    from outrider.cli.batch.run_batch import BatchDefaults
    from outrider.frontend.llm import WINDOW

    llm = model_flags.load(draft)
    framing = answers.choose_framing(llm.frontend, raw=raw, system=system)
    if files:
        defaults = BatchDefaults(params=params, framing=framing, window=WINDOW, system=system)
        if not answers.answer_file(llm.frontend, files, defaults):
            raise typer.Exit(1)
        return
    show = answers.print_json if as_json else answers.print_text
    output = show(llm, framing(text), params)
    if output.error:
        print(f"error: {output.error}", file=sys.stderr)
        raise typer.Exit(1)


def _batch_files(source: Path | None, target: Path | None) -> tuple[Path, ...]:
    """The input and output files of a batch; empty without a batch."""
    if source is None and target is None:
        return ()
    if source is None or target is None:
        raise ConfigError("a batch needs both --input and --output; add the other one")
    if not source.is_file():
        raise ConfigError(f"there is no file {source}; check --input")
    if target.exists() and not target.is_file():
        raise ConfigError(f"{target} is not a regular file, so it cannot be resumed; use another")
    if target.exists() and target.samefile(source):
        raise ConfigError("--output would overwrite --input; use another file")
    return source, target


def _prompt_text(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise ConfigError('give a prompt: outrider generate "..."')
    text = sys.stdin.read().rstrip("\n") if prompt is None else prompt
    if not text:
        raise RequestError("the prompt is empty; give at least one character")
    return text
