"""`outrider generate`: answers one prompt on the terminal, or a file of prompts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.flags import DraftFlags, SamplingParamFlags, expand_flags
from outrider.cli.model_flags import ModelFlags
from outrider.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from outrider.cli.batch.run_batch import Framing
    from outrider.frontend.frontend import Frontend
    from outrider.frontend.llm import LLM, Stream
    from outrider.frontend.lora_request import LoRARequest
    from outrider.frontend.outputs import RequestOutput
    from outrider.frontend.prompts import TextPrompt
    from outrider.frontend.sampling_params import SamplingParams


@expand_flags
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; else standard input.")] = None,
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    sampling_flags: SamplingParamFlags,
    n: Annotated[int, typer.Option("--n", help="Answers per prompt.")] = 1,
    logprobs: Annotated[int | None, typer.Option(help="Likeliest tokens in the JSON.")] = None,
    system: Annotated[str, typer.Option(help="System message.", show_default=False)] = "",
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    lora: Annotated[
        Path | None, typer.Option(help="Folder of a LoRA adapter, for all prompts.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", help="JSONL file of prompts, messages or token ids.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="JSONL file of answers; resumed if it exists.")
    ] = None,
) -> None:
    """Answer a prompt, or every line of a file."""
    params, draft = sampling_flags.params(n=n, logprobs=logprobs), draft_flags.config()
    _check_shown(raw=raw, system=system, logprobs=logprobs, is_json=as_json or target is not None)
    files = _batch_files(source, target)
    if files and (prompt is not None or as_json):
        raise ConfigError("--input takes the place of a prompt and of --json; leave those out")
    text = "" if files else _prompt_text(prompt)

    # These import torch, so wrong flags fail first.
    from outrider.cli.batch.run_batch import BatchDefaults, answer_file
    from outrider.frontend.llm import MAX_IN_FLIGHT
    from outrider.frontend.lora_request import LoRARequest, adapter_of

    llm = model_flags.load(draft, enable_lora=model_flags.enable_lora or lora is not None)
    lora_request = None if lora is None else LoRARequest("lora", 1, str(lora))
    params = sampling_flags.params(llm.get_default_sampling_params(), n=n, logprobs=logprobs)
    framing = _choose_framing(llm.frontend, raw=raw, system=system)
    if files:
        defaults = BatchDefaults(
            params=params,
            framing=framing,
            max_in_flight=MAX_IN_FLIGHT,
            adapter=adapter_of(lora_request),
            system=system,
        )
        if not answer_file(llm.frontend, files, defaults):
            raise typer.Exit(1)
        return
    show = _print_json if as_json else _print_text
    _fail_on_error(show(llm, framing(text), params, lora_request))


def _check_shown(*, raw: bool, system: str, logprobs: int | None, is_json: bool) -> None:
    """Refuse flags that would have no effect."""
    if raw and system:
        raise ConfigError("--raw uses no chat template, so it takes no --system; drop one of them")
    if logprobs is not None and not is_json:
        raise ConfigError("--logprobs are only shown with --json or --output; add one of them")


def _fail_on_error(output: "RequestOutput") -> None:
    if output.error:
        print(f"error: {output.error}", file=sys.stderr)
        raise typer.Exit(1)


def _choose_framing(frontend: "Frontend", *, raw: bool, system: str) -> "Framing":
    """The chat template, unless the user wants raw text or the model has no template."""
    from outrider.frontend.prompts import TextPrompt
    from outrider.frontend.tokenizer.chat_template import NoChatTemplate

    if raw:
        return TextPrompt
    if not isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
        opening = [{"role": "system", "content": system}] if system else []
        return lambda text: frontend.inputs.render([*opening, {"role": "user", "content": text}])
    if system:
        raise RequestError("--system needs a chat template and this model has none; leave it out")
    print("note: this model has no chat template; prompts are used as with --raw", file=sys.stderr)
    return TextPrompt


def _print_json(
    llm: "LLM", prompt: "TextPrompt", params: "SamplingParams", lora: "LoRARequest | None"
) -> "RequestOutput":
    """One object on stdout and nothing else."""
    from outrider.frontend.output_json import describe_output

    (output,) = llm.generate(prompt, params, use_tqdm=False, lora_request=lora)
    print(json.dumps(describe_output(output), ensure_ascii=False))
    return output


def _print_text(
    llm: "LLM", prompt: "TextPrompt", params: "SamplingParams", lora: "LoRARequest | None"
) -> "RequestOutput":
    """One answer as a stream, or several answers one after the other. Numbers go to stderr."""
    if params.n == 1:
        output = _print_stream(llm.stream(prompt, params, lora))
        _print_closing_line(output)
        return output
    (output,) = llm.generate(prompt, params, use_tqdm=False, lora_request=lora)
    for completion in output.outputs:
        print(f"[{completion.index}, seed {completion.seed}]\n{completion.text}\n")
    _print_closing_line(output)
    return output


def _print_stream(stream: "Stream") -> "RequestOutput":
    """Print an answer while it is streamed; returns the finished output."""
    for delta in stream:
        print(delta.text, end="", flush=True)
    print()
    return stream.output


def _print_closing_line(output: "RequestOutput") -> None:
    first, usage, timing = output.outputs[0], output.usage, output.timing
    facts = [
        f"{usage.completion_tokens} tokens",
        f"{timing.tokens_per_s:.1f} tokens/s",
        f"first after {timing.first_token_s:.2f} s",
        f"seed {first.seed}",
        f"ended by {first.finish_reason}",
    ]
    if first.acceptance.drafted:
        facts.insert(2, f"{first.acceptance.accept_length:.1f} tokens per round")
    print(f"[{', '.join(facts)}]", file=sys.stderr)


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
