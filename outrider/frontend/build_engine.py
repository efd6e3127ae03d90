"""Puts the two halves together: an engine that decides, and a runner that computes."""

from pathlib import Path

from outrider.config.engine_config import EngineConfig
from outrider.config.parallel_checks import check_parallel
from outrider.engine.engine import Engine
from outrider.engine.parallel_engine import AnyEngine, ParallelEngine
from outrider.frontend.tokenizer.read_vocabulary import read_vocabulary
from outrider.runtime.data_ranks import RankRunner
from outrider.runtime.start_data_ranks import start_data_ranks
from outrider.runtime.start_group import OnLoss, RankGroupPlan, ignore_loss
from outrider.runtime.start_runner import open_home
from outrider.wire.runner_facts import OnProgress, ignore_progress


def build_engine(
    folder: Path,
    config: EngineConfig,
    on_progress: OnProgress = ignore_progress,
    on_loss: OnLoss = ignore_loss,
    listener_fd: int | None = None,  # of a socket for other machines; None opens one
) -> AnyEngine:
    """An engine for the model in a folder, ready for requests."""
    check_parallel(config.parallel)
    plan = RankGroupPlan(
        folder=folder,
        config=config,
        read_vocabulary=lambda: read_vocabulary(Path(config.tokenizer_folder or folder)),
        on_loss=on_loss,
        listener_fd=listener_fd,
    )
    if config.parallel.data > 1:
        return _build_parallel(plan, on_progress)
    home = open_home(plan)
    runner, facts = home.build(on_progress)
    return Engine(runner, facts, runner.grammars, home)


def _build_parallel(plan: RankGroupPlan, on_progress: OnProgress) -> ParallelEngine:
    """One engine per rank, each with rows and pages of its own."""
    runner, facts = start_data_ranks(plan, on_progress)
    runners = [RankRunner(runner, rank) for rank in range(plan.config.parallel.data)]
    return ParallelEngine([Engine(each, facts) for each in runners], runner)
