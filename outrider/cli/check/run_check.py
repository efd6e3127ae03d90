"""Answers the same requests plainly and with drafts, and compares every token."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from outrider.cli.check.check_cases import PLAIN, SAMPLINGS, Configuration
from outrider.cli.check.compare_answers import Difference, first_difference
from outrider.config.engine_config import Executor
from outrider.errors import CapacityError
from outrider.frontend.batch_bar import Advance
from outrider.frontend.llm import LLM
from outrider.frontend.outputs import CompletionOutput
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate

Load = Callable[[Configuration], LLM]
Answers = dict[str, list[CompletionOutput]]  # by name of the sampling, in the order of the prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWork:
    """The requests that every configuration answers."""

    prompts: Sequence[str]
    samplings: Sequence[str]  # names in SAMPLINGS
    max_tokens: int

    def num_requests(self, num_configurations: int) -> int:
        """Each prompt with each sampling: once for the expected answer, then by plain decoding and
        by every configuration, alone and in a batch.
        """
        return (1 + 2 * (1 + num_configurations)) * len(self.samplings) * len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """An answer that differs from the plain one."""

    prompt: int
    is_alone: bool
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one configuration with one sampling."""

    configuration: Configuration
    sampling: str
    num_tokens: int  # that were compared
    mismatches: tuple[Mismatch, ...]
    accept_length: float


def run_check(
    configurations: Sequence[Configuration], work: CheckWork, load: Load, advance: Advance
) -> Iterator[Finding]:
    """Compare each configuration with plain decoding of one request at a time."""
    llm = load(PLAIN)
    right = {
        sampling: _alone(llm, work, _params(sampling, work, logprobs=MAX_LOGPROBS), advance)
        for sampling in work.samplings
    }
    yield from _findings(PLAIN, llm, work, right, advance)  # nor may batching change a token
    for configuration in configurations:
        del llm
        gc.collect()  # models hold reference cycles
        llm = load(configuration)
        yield from _findings(configuration, llm, work, right, advance)


def _findings(
    configuration: Configuration, llm: LLM, work: CheckWork, right: Answers, advance: Advance
) -> Iterator[Finding]:
    for sampling in work.samplings:
        params = _params(sampling, work)
        alone = _alone(llm, work, params, advance)
        together = _answers(llm, work.prompts, params, advance)
        yield Finding(
            configuration=configuration,
            sampling=sampling,
            num_tokens=sum(len(each.token_ids) for each in (*alone, *together)),
            mismatches=(
                *_mismatches(right[sampling], alone, is_alone=True),
                *_mismatches(right[sampling], together, is_alone=False),
            ),
            accept_length=_accept_length((*alone, *together)),
        )


def _params(sampling: str, work: CheckWork, logprobs: int | None = None) -> SamplingParams:
    least = min(SAMPLINGS[sampling].min_tokens, work.max_tokens)
    return replace(
        SAMPLINGS[sampling], max_tokens=work.max_tokens, min_tokens=least, logprobs=logprobs
    )


def executors_on(device: str) -> tuple[Executor, ...]:
    """All executors that run on a device, given the value of --device."""
    return ("eager", "graph", "breakable") if _is_gpu(device) else ("eager", "tape")


def usual_executor(device: str) -> Executor:
    """The executor that an engine on this device takes by itself."""
    return "breakable" if _is_gpu(device) else "eager"


def usual_depth(device: str) -> int:
    """The overlap that an engine on this device takes by itself."""
    return int(_is_gpu(device))


def _is_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _alone(
    llm: LLM, work: CheckWork, params: SamplingParams, advance: Advance
) -> list[CompletionOutput]:
    return [_answers(llm, [prompt], params, advance)[0] for prompt in work.prompts]


def _answers(
    llm: LLM, texts: Sequence[str], params: SamplingParams, advance: Advance
) -> list[CompletionOutput]:
    prompts = [framed(llm, text) for text in texts]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for output in outputs:
        if output.error:  # two failed answers may be equal without any proof
            raise CapacityError(f"an answer broke off, so nothing is proved: {output.error}")
        advance(output.usage.completion_tokens)
    return [output.outputs[0] for output in outputs]


def framed(llm: LLM, text: str) -> TextPrompt:
    """The text as a user's message, if the model has a chat template."""
    if isinstance(llm.get_tokenizer().chat_template, NoChatTemplate):
        return TextPrompt(text)
    return llm.frontend.inputs.render([{"role": "user", "content": text}])


def _mismatches(
    right: Sequence[CompletionOutput], drafted: Sequence[CompletionOutput], *, is_alone: bool
) -> Iterator[Mismatch]:
    for prompt, (plain, other) in enumerate(zip(right, drafted, strict=True)):
        for difference in first_difference(plain, other.token_ids):
            yield Mismatch(prompt=prompt, is_alone=is_alone, difference=difference)


def _accept_length(completions: Sequence[CompletionOutput]) -> float:
    """Mean tokens per round over all answers."""
    rounds = sum(each.acceptance.rounds for each in completions)
    num_accepted = sum(each.acceptance.kept for each in completions)
    return 1.0 + num_accepted / rounds if rounds else 1.0
