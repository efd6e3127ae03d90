"""What `outrider generate` does after its flags are checked."""

import json
import sys
from pathlib import Path

from outrider.cli.batch.batch_output import BatchOutput
from outrider.cli.batch.run_batch import BatchDefaults, BatchRun, Framing, count_lines
from outrider.errors import RequestError
from outrider.frontend.batch_bar import batch_bar
from outrider.frontend.frontend import Frontend
from outrider.frontend.llm import LLM, Stream
from outrider.frontend.output_json import describe_output
from outrider.frontend.outputs import RequestOutput
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate


def choose_framing(frontend: Frontend, *, raw: bool, system: str) -> Framing:
    """The chat template, unless the user wants raw text or the model has no template."""
    if raw:
        return TextPrompt
    if not isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
        opening = [{"role": "system", "content": system}] if system else []
        return lambda text: frontend.render([*opening, {"role": "user", "content": text}])
    if system:
        raise RequestError("--system needs a chat template and this model has none; leave it out")
    print("note: this model has no chat template; prompts are used as with --raw", file=sys.stderr)
    return TextPrompt


def print_json(llm: LLM, prompt: TextPrompt, params: SamplingParams) -> RequestOutput:
    """One object on stdout and nothing else."""
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    print(json.dumps(describe_output(output), ensure_ascii=False))
    return output


def print_text(llm: LLM, prompt: TextPrompt, params: SamplingParams) -> RequestOutput:
    """One answer as a stream, or several answers one after the other. Numbers go to stderr."""
    if params.n == 1:
        output = print_stream(llm.stream(prompt, params))
        print_closing_line(output)
        return output
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    for completion in output.outputs:
        print(f"[{completion.index}, seed {completion.seed}]\n{completion.text}\n")
    print_closing_line(output)
    return output


def print_stream(stream: Stream) -> RequestOutput:
    """Print an answer while it is streamed; returns the finished output."""
    for delta in stream:
        print(delta.text, end="", flush=True)
    print()
    return stream.output


def print_closing_line(output: RequestOutput) -> None:
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


def answer_file(frontend: Frontend, files: tuple[Path, ...], defaults: BatchDefaults) -> bool:
    """Answer the lines of a file that have no answer yet; returns whether all have one now."""
    source, target = files
    with BatchOutput(target) as written:
        total, num_done = count_lines(source, written), len(written.done)
        batch = BatchRun(frontend, defaults, written)
        with batch_bar(total, done=num_done) as advance:
            batch.run(source, advance)
    facts = [f"{num_done} from before", f"{written.num_failed} failed"]
    if batch.refusals:
        facts.append(f"{len(batch.refusals)} left to the next run ({batch.refusals[0]})")
    print(f"{total} lines in {target}: {', '.join(facts)}", file=sys.stderr)
    return not written.num_failed and not batch.refusals
