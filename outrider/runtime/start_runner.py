"""Starts what computes a model: one runner in this process, or a group of ranks."""

from dataclasses import replace
from typing import Protocol

from outrider.errors import CapacityError, ConfigError
from outrider.runtime.join_ranks import use_share_of_cores
from outrider.runtime.model_home import ModelHome, release_all_memory
from outrider.runtime.ranked_runner import RankedRunner
from outrider.runtime.start_group import RankGroupPlan, start_group
from outrider.structured.grammar_cache import Grammars
from outrider.wire.adapter import AdapterChecks
from outrider.wire.runner_facts import OnProgress, RunnerFacts, StepRunner, ignore_progress
from outrider.wire.sleep_level import SleepLevel


class AnyRunner(StepRunner, Protocol):
    """A runner, with the grammars that its rows can follow and the adapters that they can use."""

    @property
    def grammars(self) -> Grammars: ...
    @property
    def adapters(self) -> AdapterChecks: ...


class AnyHome(Protocol):
    """Builds the runner of a model, and builds it again after the engine has slept."""

    def build(self, on_progress: OnProgress = ignore_progress) -> tuple[AnyRunner, RunnerFacts]:
        """A runner, and what the deciding half must know about it."""
        ...

    def offload(self, level: SleepLevel) -> None: ...
    def release_memory(self) -> None: ...
    def restore_weights(self) -> None: ...
    def build_again(self) -> AnyRunner: ...
    def use_head(self, folder: str) -> None: ...


def open_home(plan: RankGroupPlan) -> AnyHome:
    """For the model in a folder, with as many ranks as are configured."""
    if plan.config.parallel.tensor == 1:
        return ModelHome(plan.folder, plan.config, plan.read_vocabulary)
    use_share_of_cores(plan.config.parallel)
    return RanksHome(plan)


class RanksHome:
    """Starts a group of ranks. An engine that sleeps ends the group, at level 1, too.

    Weights are in the processes of the ranks, so they are read from their files again.
    """

    def __init__(self, plan: RankGroupPlan) -> None:
        self._plan = plan
        self._runner: RankedRunner | None = None  # while there is a group

    def build(self, on_progress: OnProgress = ignore_progress) -> tuple[AnyRunner, RunnerFacts]:
        group = start_group(self._plan, on_progress)
        facts, config = group.facts, self._plan.config
        # A group that is started again has as many pages and slots: the scheduler counts on them.
        cache = replace(
            config.cache,
            kv_tokens=facts.num_pages * facts.host.page_size,
            row_snapshots=facts.snapshots.num,
            window_tokens=facts.memory.windows.num_pages * facts.host.page_size,
        )
        self._plan = replace(self._plan, config=replace(config, cache=cache))
        self._runner = RankedRunner(group.first, group.ranks, group.others)
        return self._runner, facts

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

    def use_head(self, folder: str) -> None:
        raise ConfigError(
            f"the ranks of --tensor-parallel-size cannot change to the head {folder}; restart"
        )
