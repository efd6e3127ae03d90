"""Starts a group of ranks: this process becomes rank 0, the others are its children."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.config.engine_config import EngineConfig
from outrider.distributed.gloo_ranks import GlooRanks
from outrider.errors import ConfigError
from outrider.runtime.join_ranks import join_ranks, model_ranks, open_store
from outrider.runtime.model_home import ModelHome
from outrider.runtime.rank_messages import RankJob
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.runner import Runner
from outrider.structured.grammar_cache import read_no_vocabulary
from outrider.wire.grammar_spec import Vocabulary
from outrider.wire.runner_facts import OnProgress, RunnerFacts

OnLoss = Callable[[], None]

_HERE = "127.0.0.1"


def ignore_loss() -> None:
    """An `OnLoss` for a process that learns of the loss by its next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroupPlan:
    """The model that a group computes, and what is called when one of its ranks is lost."""

    folder: Path
    config: EngineConfig
    read_vocabulary: Callable[[], Vocabulary] = read_no_vocabulary
    on_loss: OnLoss = ignore_loss  # called by a thread


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A group whose ranks have all loaded their share."""

    first: Runner
    ranks: GlooRanks
    others: RankProcesses
    facts: RunnerFacts


def start_group(plan: RankGroupPlan, on_progress: OnProgress) -> StartedGroup:
    """The group, or the reason why it cannot start; then no process of it is left."""
    config = plan.config
    store = open_store(_HERE)
    size = config.parallel.tensor * config.parallel.data
    jobs = [_job(plan, rank, size, store.port) for rank in range(size)]
    others = RankProcesses(jobs[1:], timeout_s=config.parallel.timeout_s, on_loss=plan.on_loss)
    try:
        ranks = join_ranks(jobs[0], store)
        shared = model_ranks(ranks, config.parallel)
        home = ModelHome(plan.folder, jobs[0].config, plan.read_vocabulary, ranks=shared)
        runner, facts = home.build(on_progress)
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
    return StartedGroup(runner, ranks, others, facts)


def _job(plan: RankGroupPlan, rank: int, size: int, port: int) -> RankJob:
    config = replace(plan.config, device=_device_of(plan.config.device, rank, size))
    return RankJob(folder=plan.folder, config=config, rank=rank, host=_HERE, port=port)


def _device_of(device: str, rank: int, size: int) -> str:
    """A GPU for every rank; a device that the user names is shared by all of them."""
    num_cuda = torch.cuda.device_count()
    if device not in ("auto", "cuda") or not num_cuda:
        return device
    if size > num_cuda:
        raise ConfigError(
            f"{size} ranks need {size} GPUs, and {num_cuda} are visible; lower "
            "--tensor-parallel-size, or share one on purpose with --device cuda:0"
        )
    return f"cuda:{rank}"
