"""From checked flags to a printed report, through the real engine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from outrider.bench.acceptance.acceptance_args import AcceptanceArgs, name_of
from outrider.bench.acceptance.acceptance_report import (
    AcceptanceAnswer,
    AcceptanceReport,
    Setup,
    describe_acceptance,
    print_acceptance,
)
from outrider.bench.offline.workload import encode_chat
from outrider.bench.report import write_report
from outrider.bench.run_progress import run_bar
from outrider.config.draft_config import DraftConfig, TreeSize
from outrider.config.engine_config import Auto, Dtype
from outrider.errors import CapacityError, ConfigError
from outrider.frontend.llm import LLM
from outrider.frontend.prompts import TokenPrompt
from outrider.frontend.sampling_params import SamplingParams

_SEED = 7  # of the first question; the others count on


def bench_acceptance(
    model: str,
    args: AcceptanceArgs,
    *,
    dtype: Dtype | Auto,
    device: str,
    json_path: Path | None,
) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    answers: list[AcceptanceAnswer] = []
    setups = [(name, tree) for name in args.drafts for tree in args.trees]
    with run_bar(len(setups)) as note:
        for name, tree in setups:
            note(f"{name}, {name_of(tree)}")
            draft = _sized(args.drafts[name], tree)
            llm = LLM(model, draft=draft, dtype=dtype, device=device, max_num_seqs=args.rows)
            answers += _measure(llm, args, drafter=name, tree=name_of(tree))
            del llm  # free its memory for the next one
    report = AcceptanceReport(
        model=model, device=device, max_tokens=args.max_tokens, answers=tuple(answers)
    )
    print_acceptance(report)
    write_report(json_path, describe_acceptance(report))


def _sized(draft: DraftConfig, tree: TreeSize) -> DraftConfig:
    return replace(draft, steps=tree.steps, topk=tree.topk, nodes=tree.nodes)


def _measure(
    llm: LLM, args: AcceptanceArgs, *, drafter: str, tree: str
) -> Iterator[AcceptanceAnswer]:
    """Every question at every temperature, except questions that leave no room for an answer."""
    room = llm.frontend.inputs.bounds.max_context - args.max_tokens
    encoded = [encode_chat(llm.get_tokenizer(), each.text) for each in args.questions]
    fitting = [
        (question, TokenPrompt(tuple(tokens)))
        for question, tokens in zip(args.questions, encoded, strict=True)
        if len(tokens) <= room
    ]
    if not fitting:
        raise ConfigError(f"no prompt fits beside {args.max_tokens} tokens; lower --max-tokens")
    for temperature in args.temperatures:
        params = [
            SamplingParams(
                temperature=temperature,
                seed=_SEED + index,
                max_tokens=args.max_tokens,
                detokenize=False,
            )
            for index in range(len(fitting))
        ]
        outputs = llm.generate([prompt for _, prompt in fitting], params, use_tqdm=False)
        for (question, _), output in zip(fitting, outputs, strict=True):
            (completion,) = output.outputs
            if completion.error:
                raise CapacityError(f"an answer broke off: {completion.error}")
            yield AcceptanceAnswer(
                setup=Setup(drafter=drafter, tree=tree, temperature=temperature),
                source=question.source,
                tokens=len(completion.token_ids),
                rounds=completion.acceptance.rounds,
                accepted_per_position=tuple(completion.acceptance.kept_per_position),
            )
