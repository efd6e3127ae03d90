"""`outrider bench speculation`, from checked flags to a printed report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.bench.machine import this_machine
from outrider.bench.offline.start_offline import set_threads
from outrider.bench.offline.workload import encode_chat
from outrider.bench.report import write_report
from outrider.bench.run_progress import run_bar
from outrider.bench.speculation.measure_drafters import (
    AnswerRules,
    DrafterEngine,
    SpeculationQuestion,
    SpeculationTarget,
    compare,
    count_drafter_runs,
)
from outrider.bench.speculation.prompt_kinds import Prompt
from outrider.bench.speculation.speculation_report import (
    PLAIN,
    SpeculationReport,
    SpeculationSetting,
)
from outrider.bench.speculation.speculation_table import describe_speculation, print_speculation
from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.config.engine_config import Dtype
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from outrider.models.decoder_loader import load_decoder
from outrider.models.model_config import read_config
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits

_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationArgs:
    """The drafters to compare and the work to give them."""

    drafts: dict[str, DraftConfig]  # by the name to show
    prompts: tuple[Prompt, ...]
    max_tokens: int
    temperature: float
    dtype: Dtype
    repetitions: int


def bench_speculation(
    model: str,
    folder: Path,
    args: SpeculationArgs,
    *,
    json_path: Path | None,
    threads: int,
) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    set_threads(threads)
    tokenizer = load_tokenizer(folder)
    questions = _questions(tokenizer, args, max_context=read_config(folder).max_context)
    target = _load_target(folder, args, questions)
    drafts = {PLAIN: NO_DRAFT, **args.drafts}
    engines = [DrafterEngine(name, target, draft) for name, draft in drafts.items()]
    sampling = AnswerRules(
        limits=Limits(max_tokens=args.max_tokens, stop_ids=tokenizer.stop_ids),
        sampling=RowSampling(seed=_SEED, temperature=args.temperature),
    )
    num_runs = count_drafter_runs(
        num_engines=len(engines),
        num_questions=len(questions),
        repetitions=args.repetitions,
    )
    with run_bar(num_runs) as note:
        runs = tuple(compare(engines, questions, sampling, args.repetitions, note))
    report = SpeculationReport(setting=_setting(model, args), runs=runs)
    print_speculation(report)
    write_report(json_path, describe_speculation(report))


def _questions(
    tokenizer: Tokenizer | NoTokenizer, args: SpeculationArgs, *, max_context: int
) -> list[SpeculationQuestion]:
    """The prompts as the chat template frames them; those that leave room for an answer."""
    encoded = [
        SpeculationQuestion(kind=prompt.kind, tokens=tuple(encode_chat(tokenizer, prompt.text)))
        for prompt in args.prompts
    ]
    fitting = [each for each in encoded if len(each.tokens) + args.max_tokens <= max_context]
    if not fitting:
        raise ConfigError(f"no prompt fits beside {args.max_tokens} tokens; lower --max-tokens")
    return fitting


def _load_target(
    folder: Path, args: SpeculationArgs, questions: Sequence[SpeculationQuestion]
) -> SpeculationTarget:
    longest = max(len(question.tokens) for question in questions)
    return SpeculationTarget(
        model=load_decoder(folder, dtype=args.dtype, device=torch.device("cpu")),
        folder=folder,
        dtype=args.dtype,
        max_context=longest + args.max_tokens,
    )


def _setting(model: str, args: SpeculationArgs) -> SpeculationSetting:
    return SpeculationSetting(
        model=model,
        machine=this_machine(has_busy_neighbour=False),
        dtype=args.dtype,
        temperature=args.temperature,
        max_tokens=args.max_tokens,
    )
