"""Starts ranks with requests of their own: this process is rank 0 and drives the others."""

from dataclasses import replace
from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.expert_config import ExpertsConfig
from outrider.models.target import read_target
from outrider.runtime.data_ranks import DataRanksRunner
from outrider.runtime.join_ranks import use_share_of_cores
from outrider.runtime.start_group import RankGroupPlan, start_group
from outrider.wire.runner_facts import OnProgress, RunnerFacts, ignore_progress


def _has_experts(folder: Path) -> bool:
    config = read_target(folder)
    return isinstance(config, V4Config) or isinstance(config.experts, ExpertsConfig)


def start_data_ranks(
    plan: RankGroupPlan, on_progress: OnProgress = ignore_progress
) -> tuple[DataRanksRunner, RunnerFacts]:
    """The runner of all ranks, and what the engine of each of them must know."""
    config, parallel = plan.config, plan.config.parallel
    if parallel.tensor > 1:
        raise ConfigError(
            "tensor_parallel_size and data_parallel_size cannot both be above 1 yet; use one"
        )
    if parallel.is_expert_parallel and not _has_experts(plan.folder):
        raise ConfigError(
            "this model has no experts to divide; leave --enable-expert-parallel out: "
            f"--data-parallel-size {parallel.data} runs copies of it"
        )
    # The driver reads all results before it decides again.
    config = replace(config, execution=replace(config.execution, depth=0))
    use_share_of_cores(parallel)
    group = start_group(replace(plan, config=config), on_progress)
    return DataRanksRunner(group.first, group.ranks, group.others), group.facts
