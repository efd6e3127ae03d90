"""The parts of `one_card`: each loads a model, answers the same prompts twice, writes a report."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ranks.lone_nccl_rank import engine_with_experts, engine_with_sums
from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import (
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    Executor,
    LimitsConfig,
    ParallelConfig,
)
from outrider.engine.parallel_engine import AnyEngine
from outrider.errors import ConfigError
from outrider.frontend.build_engine import build_engine
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_bars import BarReporter
from outrider.hub.resolve_model import resolve_model
from outrider.hub.shipped_heads import shipped_head
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import LogprobsWanted, RowSampling
from outrider.wire.submission import Limits, Submission

_MAX_TOKENS, _KV_TOKENS, _CONTEXT, _TOP = 40, 8192, 512, 8
_LARGEST = Budget(steps=64, topk=64, nodes=64)  # the drafter's own budget bounds it
_QUESTIONS = (
    "Explain why the sky is blue.",
    "Write a short poem about a river, and then explain every line of it.",
    "What is the capital of France?",
    "List five animals that live in the sea, one per line.",
)


_ALONE = ParallelConfig()
_TENSOR = ParallelConfig(tensor=2)
_EXPERTS = ParallelConfig(data=2, is_expert_parallel=True)


@dataclass(frozen=True, slots=True)
class Part:
    """What one process runs."""

    model: str  # a folder beside the reports
    is_captured: bool
    parallel: ParallelConfig = _ALONE
    build: Callable[[Path, EngineConfig], AnyEngine] = build_engine
    executor: Executor = "breakable"  # if it is captured


PARTS = {
    "smollm2 one": Part("smollm2", False),
    "smollm2 tp2 eager": Part("smollm2", False, _TENSOR),
    "smollm2 tp2 captured": Part("smollm2", True, _TENSOR),
    "smollm2 nccl": Part("smollm2", True, build=engine_with_sums, executor="graph"),
    "moe one": Part("moe", False),
    "moe dp2 eager": Part("moe", False, _EXPERTS),
    "moe dp2 captured": Part("moe", True, _EXPERTS),
    "moe nccl": Part("moe", True, build=engine_with_experts, executor="graph"),
}
NCCL = ("smollm2 nccl", "moe nccl")


def prepare_models(root: Path, model: str) -> str:
    """Put both models and their prompts into a folder; returns a line about them."""
    _write_moe(root / "moe")
    _note(root / "moe", {"drafter": "ngram"}, _random_prompts())
    try:
        shutil.copytree(resolve_model(model or DEFAULT_ALIAS, BarReporter()), root / "smollm2")
    except ConfigError as error:
        _write_llama(root / "smollm2")
        _note(root / "smollm2", {"drafter": "ngram"}, _random_prompts())
        return f"random models with n-grams; SmolLM2 is not here ({error})"
    head = shipped_head(DEFAULT_ALIAS)
    assert head is not None, "it ships with the package"
    draft = {"drafter": str(head.folder), "steps": 4, "topk": 2, "nodes": 8}
    _note(root / "smollm2", draft, _encoded(root / "smollm2"))
    return "SmolLM2 with its head, and a random mixture of experts with n-grams"


def run_part(name: str, *, folder: Path, device: str, report: Path) -> None:
    """Answer all prompts twice and write the report."""
    part = PARTS[name]
    notes = json.loads((folder / part.model / "one_card.json").read_text())
    captured: Executor = "tape" if device == "cpu" else part.executor
    config = EngineConfig(
        dtype="float32",
        device=device,
        execution=ExecutionConfig(executor=captured if part.is_captured else "eager"),
        cache=CacheConfig(kv_tokens=_KV_TOKENS, prefix=False),
        limits=LimitsConfig(rows=len(_QUESTIONS), context=_CONTEXT, step_tokens=256),
        parallel=part.parallel,
        draft=DraftConfig(adaptive=False, **notes["draft"]),
    )
    engine = part.build(folder / part.model, config)
    found = _report(engine, notes["prompts"]) | {"is_captured": part.is_captured}
    whole = report.with_suffix(".part")
    whole.write_text(json.dumps(found))
    whole.rename(report)


def _report(engine: AnyEngine, prompts: list[list[int]]) -> dict[str, Any]:
    first = _answers(engine, prompts, LogprobsWanted())
    again = _answers(engine, prompts, LogprobsWanted())
    counts = engine.stats.work.counts
    scored = _answers(engine, prompts, LogprobsWanted(chosen=True, top=_TOP))
    return {
        "answers": [each.tokens for each in first],
        "again": [each.tokens for each in again],
        "scores": [each.scores for each in scored],
        "drafted": sum(each.drafted for each in first),
        "accepted": sum(each.accepted for each in first),
        "steps": counts.steps,
        "eager": counts.eager,
    }


@dataclass
class _Answer:
    tokens: list[int]
    scores: list[dict[str, float]]  # log-probabilities of the likeliest tokens, by id
    drafted: int = 0
    accepted: int = 0


def _answers(
    engine: AnyEngine, prompts: list[list[int]], logprobs: LogprobsWanted
) -> list[_Answer]:
    sampling = RowSampling(seed=0, temperature=0.0, logprobs=logprobs)
    limits = Limits(max_tokens=_MAX_TOKENS, stop_ids=frozenset())
    answers = {str(index): _Answer([], []) for index in range(len(prompts))}
    for name, prompt in zip(answers, prompts, strict=True):
        engine.add(
            Submission(
                request_id=name,
                prompt=tuple(prompt),
                sampling=sampling,
                limits=limits,
                budget=_LARGEST,
            )
        )
    while engine.has_work:
        for update in engine.step():
            assert update.finish != "error", update.reason
            answer = answers[update.request_id]
            answer.tokens += update.tokens
            answer.scores += [{str(t): score for t, score in e.top} for e in update.logprobs]
            answer.drafted = update.progress.drafted
            answer.accepted = update.progress.num_accepted
    return list(answers.values())


def _note(folder: Path, draft: dict[str, Any], prompts: list[list[int]]) -> None:
    (folder / "one_card.json").write_text(json.dumps({"draft": draft, "prompts": prompts}))


def _encoded(folder: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(question).ids for question in _QUESTIONS]


def _random_prompts() -> list[list[int]]:
    """Prompts of 6, 15, 24 and 33 tokens, with repetitions that n-grams find."""
    return [
        [(7 * row + 3 * place) % 40 + 1 for place in range(6 + 9 * row)]
        for row in range(len(_QUESTIONS))
    ]


def _write_moe(folder: Path) -> None:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        max_position_embeddings=_CONTEXT,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def _write_llama(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=_CONTEXT,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
