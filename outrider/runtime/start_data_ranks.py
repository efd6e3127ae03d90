"""Starts ranks with requests of their own: this process is rank 0 and drives the others."""

from dataclasses import replace
from pathlib import Path

from outrider.config.engine_config import EngineConfig
from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.expert_config import ExpertsConfig
from outrider.models.target import read_target
from outrider.runtime.data_ranks import DataRanksRunner
from outrider.runtime.join_ranks import join_ranks, model_ranks, open_store, use_share_of_cores
from outrider.runtime.model_home import ModelHome
from outrider.runtime.rank_messages import RankJob
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.start_runner import HERE, device_of
from outrider.wire.runner_facts import OnProgress, RunnerFacts, ignore_progress


def _has_experts(folder: Path) -> bool:
    config = read_target(folder)
    return isinstance(config, V4Config) or isinstance(config.experts, ExpertsConfig)


def start_data_ranks(
    folder: Path, config: EngineConfig, on_progress: OnProgress = ignore_progress
) -> tuple[DataRanksRunner, RunnerFacts]:
    """The runner of all ranks, and what the engine of each of them must know."""
    parallel = config.parallel
    if parallel.tensor > 1:
        raise ConfigError(
            "tensor_parallel_size and data_parallel_size cannot both be above 1 yet; use one"
        )
    if parallel.is_expert_parallel and not _has_experts(folder):
        raise ConfigError(
            "this model has no experts to divide; leave --enable-expert-parallel out: "
            f"--data-parallel-size {parallel.data} runs copies of it"
        )
    # The driver reads all results before it decides again.
    config = replace(config, execution=replace(config.execution, depth=0))
    store = open_store(HERE)
    jobs = [
        RankJob(
            folder=folder,
            config=replace(config, device=device_of(config, rank)),
            rank=rank,
            host=HERE,
            port=store.port,
        )
        for rank in range(parallel.data)
    ]
    others = RankProcesses(jobs[1:], timeout_s=parallel.timeout_s)
    use_share_of_cores(parallel.data)
    try:
        ranks = join_ranks(jobs[0], store)
        shared = model_ranks(ranks, parallel)
        runner, facts = ModelHome(folder, jobs[0].config, ranks=shared).build(on_progress)
        others.wait_until_ready()
    except RuntimeError as error:
        others.close()
        raise ConfigError(others.loss or f"the ranks do not find each other: {error}") from error
    except BaseException:
        others.close()
        raise
    ranks.expect_prompt_ranks()
    return DataRanksRunner(runner, others), facts
