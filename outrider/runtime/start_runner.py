"""Starts what computes a model: one runner in this process, or a group of ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from outrider.config.engine_config import EngineConfig
from outrider.config.parallel_checks import check_parallel
from outrider.errors import ConfigError
from outrider.runtime.build_runner import build_runner
from outrider.runtime.join_ranks import join_ranks, open_store, use_share_of_cores
from outrider.runtime.rank_messages import RankJob
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.ranked_runner import RankedRunner
from outrider.structured.grammar_cache import Grammars, read_no_vocabulary
from outrider.wire.grammar_spec import Vocabulary
from outrider.wire.runner_facts import OnProgress, RunnerFacts, StepRunner, ignore_progress

OnLoss = Callable[[], None]

_HERE = "127.0.0.1"


def ignore_loss() -> None:
    """An `OnLoss` for a process that learns of the loss by its next step."""


class AnyRunner(StepRunner, Protocol):
    """A runner, and the grammars that its rows can follow."""

    @property
    def grammars(self) -> Grammars: ...


def start_runner(
    folder: Path,
    config: EngineConfig,
    on_progress: OnProgress = ignore_progress,
    read_vocabulary: Callable[[], Vocabulary] = read_no_vocabulary,
    on_loss: OnLoss = ignore_loss,
) -> tuple[AnyRunner, RunnerFacts]:
    """A runner for the model in a folder, and what the deciding half must know about it.

    `on_loss` is called when another rank was lost; a thread calls it.
    """
    check_parallel(config.parallel)
    size = config.parallel.tensor
    if size == 1:
        return build_runner(folder, config, on_progress, read_vocabulary)
    store = open_store(_HERE)
    jobs = [_job(folder, config, rank, store.port) for rank in range(size)]
    others = RankProcesses(jobs[1:], timeout_s=config.parallel.timeout_s, on_loss=on_loss)
    use_share_of_cores(size)
    try:
        ranks = join_ranks(jobs[0], store)
        runner, facts = build_runner(
            folder, jobs[0].config, on_progress, read_vocabulary, ranks=ranks
        )
        held = facts.memory.ranks + others.wait_until_ready()
    except (RuntimeError, AssertionError) as error:
        reason = others.explain(error)
        others.close()
        raise ConfigError(reason) from error
    except BaseException:
        others.close()
        raise
    ranks.expect_prompt_ranks()
    facts = replace(facts, memory=replace(facts.memory, ranks=held))
    return RankedRunner(runner, ranks, others), facts


def _job(folder: Path, config: EngineConfig, rank: int, port: int) -> RankJob:
    config = replace(config, device=_device_of(config, rank))
    return RankJob(folder=folder, config=config, rank=rank, host=_HERE, port=port)


def _device_of(config: EngineConfig, rank: int) -> str:
    """A GPU for every rank; a device that the user names is shared by all of them."""
    num_cuda, size = torch.cuda.device_count(), config.parallel.tensor
    if config.device not in ("auto", "cuda") or not num_cuda:
        return config.device
    if size > num_cuda:
        raise ConfigError(
            f"{size} ranks need {size} GPUs, and {num_cuda} are visible; lower "
            "--tensor-parallel-size, or share one on purpose with --device cuda:0"
        )
    return f"cuda:{rank}"
