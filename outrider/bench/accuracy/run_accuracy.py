"""Asks every question plainly and with a drafter, through the real engine."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from rich.console import Console

from outrider.bench.accuracy.accuracy_report import (
    PLAIN,
    AccuracyAnswer,
    AccuracyReport,
    AccuracyRun,
)
from outrider.bench.accuracy.accuracy_task import INSTRUCTION, AccuracyTask, Problem
from outrider.errors import CapacityError
from outrider.frontend.llm import LLM
from outrider.frontend.outputs import RequestOutput
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate

_SEED = 7  # of the first question; the others count on
_ASK, _SOLVE = "Question: ", "\nAnswer: "

Load = Callable[[], LLM]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyWork:
    """The questions, and how they are answered."""

    model: str
    task: AccuracyTask
    temperature: float
    max_tokens: int


def measure_accuracy(work: AccuracyWork, plain: Load, drafted: dict[str, Load]) -> AccuracyReport:
    """The answers of plain decoding and of every drafter, by its name."""
    runs = [_run(name, work, load) for name, load in {PLAIN: plain, **drafted}.items()]
    return AccuracyReport(
        model=work.model,
        task=work.task,
        temperature=work.temperature,
        max_tokens=work.max_tokens,
        plain=runs[0],
        drafted=tuple(runs[1:]),
    )


def _run(name: str, work: AccuracyWork, load: Load) -> AccuracyRun:
    problems = work.task.problems
    Console(stderr=True).print(f"{len(problems)} questions with --draft {name}", markup=False)
    llm = load()
    prompts = [_prompt(llm, problem, work.task.examples) for problem in problems]
    params = [_params(llm, work, seed=_SEED + index) for index in range(len(problems))]
    start = perf_counter()
    outputs = llm.generate(prompts, params)
    duration_s = perf_counter() - start
    del llm
    gc.collect()  # models hold reference cycles, and the next engine needs the memory
    answers = tuple(map(_answer, problems, outputs))
    return AccuracyRun(drafter=name, answers=answers, duration_s=duration_s)


def _params(llm: LLM, work: AccuracyWork, *, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=work.temperature,
        seed=seed,
        max_tokens=work.max_tokens,
        stop=() if _has_turns(llm) else (f"\n{_ASK}",),  # a text model goes on asking
    )


def _answer(problem: Problem, output: RequestOutput) -> AccuracyAnswer:
    if output.error:
        raise CapacityError(f"an answer broke off: {output.error}")
    (completion,) = output.outputs
    return AccuracyAnswer(
        problem=problem,
        text=completion.text,
        tokens=tuple(completion.token_ids),
        is_cut=completion.finish_reason == "length",
        acceptance=completion.acceptance,
    )


def _prompt(llm: LLM, problem: Problem, examples: tuple[Problem, ...]) -> TextPrompt:
    """Examples as turns of a chat, or as plain text for a model without a chat template."""
    if not _has_turns(llm):
        solved = (f"{_ASK}{each.question}{_SOLVE}{each.answer}\n\n" for each in examples)
        return TextPrompt("".join(solved) + f"{_ASK}{problem.question}{_SOLVE.rstrip()}")
    turns = [turn for each in examples for turn in _turns(each)]
    return llm.frontend.inputs.render([*turns, _user_turn(problem)])


def _has_turns(llm: LLM) -> bool:
    return not isinstance(llm.get_tokenizer().chat_template, NoChatTemplate)


def _turns(example: Problem) -> Iterator[dict[str, str]]:
    yield _user_turn(example)
    yield {"role": "assistant", "content": example.answer}


def _user_turn(problem: Problem) -> dict[str, str]:
    return {"role": "user", "content": f"{problem.question}\n{INSTRUCTION}"}
