"""Starts what computes a model: one runner in this process, or a group of ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from outrider.config.engine_config import EngineConfig
from outrider.errors import CapacityError, ConfigError
from outrider.runtime.join_ranks import join_ranks, open_store, use_share_of_cores
from outrider.runtime.model_home import ModelHome, release_all_memory
from outrider.runtime.rank_messages import RankJob
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.ranked_runner import RankedRunner
from outrider.structured.grammar_cache import Grammars, read_no_vocabulary
from outrider.wire.grammar_spec import Vocabulary
from outrider.wire.runner_facts import OnProgress, RunnerFacts, StepRunner, ignore_progress
from outrider.wire.sleep_level import SleepLevel

HERE = "127.0.0.1"


class AnyRunner(StepRunner, Protocol):
    """A runner, and the grammars that its rows can follow."""

    @property
    def grammars(self) -> Grammars: ...


class AnyHome(Protocol):
    """Builds the runner of a model, and builds it again after the engine has slept."""

    def build(self, on_progress: OnProgress = ignore_progress) -> tuple[AnyRunner, RunnerFacts]:
        """A runner, and what the deciding half must know about it."""
        ...

    def offload(self, level: SleepLevel) -> None: ...
    def release_memory(self) -> None: ...
    def restore_weights(self) -> None: ...
    def build_again(self) -> AnyRunner: ...


def open_home(
    folder: Path,
    config: EngineConfig,
    read_vocabulary: Callable[[], Vocabulary] = read_no_vocabulary,
) -> AnyHome:
    """For the model in a folder, with as many ranks as are configured."""
    size = config.parallel.tensor
    if size < 1:
        raise ConfigError(f"tensor_parallel_size must be at least 1, got {size}")
    if size == 1:
        return ModelHome(folder, config, read_vocabulary)
    use_share_of_cores(size)
    return RanksHome(folder, config, read_vocabulary)


class RanksHome:
    """Starts a group of ranks. An engine that sleeps ends the group, at level 1, too.

    Weights are in the processes of the ranks, so they are read from their files again.
    """

    def __init__(
        self, folder: Path, config: EngineConfig, read_vocabulary: Callable[[], Vocabulary]
    ) -> None:
        self._folder = folder
        self._config = config
        self._read_vocabulary = read_vocabulary
        self._runner: RankedRunner | None = None  # while there is a group

    def build(self, on_progress: OnProgress = ignore_progress) -> tuple[AnyRunner, RunnerFacts]:
        runner, facts = _start_ranks(self._folder, self._config, on_progress, self._read_vocabulary)
        # A group that is started again has as many pages: the scheduler counts on them.
        cache = replace(self._config.cache, kv_tokens=facts.num_pages * facts.host.page_size)
        self._config = replace(self._config, cache=cache)
        self._runner = runner
        return runner, facts

    def offload(self, level: SleepLevel) -> None:
        del level
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def release_memory(self) -> None:
        release_all_memory()

    def restore_weights(self) -> None:
        pass

    def build_again(self) -> AnyRunner:
        try:
            return self.build()[0]
        except ConfigError as error:
            raise CapacityError(f"the ranks cannot start again: {error}") from error


def _start_ranks(
    folder: Path,
    config: EngineConfig,
    on_progress: OnProgress,
    read_vocabulary: Callable[[], Vocabulary],
) -> tuple[RankedRunner, RunnerFacts]:
    store = open_store(HERE)
    jobs = [_job(folder, config, rank, store.port) for rank in range(config.parallel.tensor)]
    others = RankProcesses(jobs[1:], timeout_s=config.parallel.timeout_s)
    try:
        ranks = join_ranks(jobs[0], store)
        home = ModelHome(folder, jobs[0].config, read_vocabulary, ranks=ranks)
        runner, facts = home.build(on_progress)
        others.wait_until_ready()
    except RuntimeError as error:
        others.close()
        raise ConfigError(others.loss or f"the ranks do not find each other: {error}") from error
    except BaseException:
        others.close()
        raise
    ranks.expect_prompt_ranks()
    return RankedRunner(runner, others), facts


def _job(folder: Path, config: EngineConfig, rank: int, port: int) -> RankJob:
    config = replace(config, device=device_of(config, rank))
    return RankJob(folder=folder, config=config, rank=rank, host=HERE, port=port)


def device_of(config: EngineConfig, rank: int) -> str:
    """A GPU for every rank; a device that the user names is shared by all of them."""
    parallel, num_cuda = config.parallel, torch.cuda.device_count()
    size = parallel.tensor * parallel.data
    if config.device not in ("auto", "cuda") or not num_cuda:
        return config.device
    if size > num_cuda:
        raise ConfigError(
            f"{size} ranks need {size} GPUs, and {num_cuda} are visible; lower "
            "--tensor-parallel-size, or share one on purpose with --device cuda:0"
        )
    return f"cuda:{rank}"
