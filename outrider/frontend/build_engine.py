"""Puts the two halves together: an engine that decides, and a runner that computes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from outrider.config.early_ranks import EarlyRanks
from outrider.config.engine_config import EngineConfig
from outrider.config.lora_checks import check_lora
from outrider.config.parallel_checks import check_parallel
from outrider.config.role_checks import check_role
from outrider.disaggregation.open_role import open_fetches, open_offers
from outrider.engine.decode_role import DecodeRole
from outrider.engine.engine import Engine
from outrider.engine.parallel_engine import AnyEngine, ParallelEngine
from outrider.engine.prefill_role import PrefillRole
from outrider.engine.runner_home import AwakeHome
from outrider.frontend.check_drafter import check_drafter
from outrider.frontend.tokenizer.read_vocabulary import read_vocabulary
from outrider.runtime.data_ranks import RankRunner
from outrider.runtime.model_home import ModelHome
from outrider.runtime.start_data_ranks import start_data_ranks
from outrider.runtime.start_group import OnLoss, RankGroupPlan, ignore_loss
from outrider.runtime.start_runner import open_home
from outrider.wire.runner_facts import OnProgress, RunnerFacts, ignore_progress


def build_engine(
    folder: Path,
    config: EngineConfig,
    on_progress: OnProgress = ignore_progress,
    on_loss: OnLoss = ignore_loss,
    listener_fd: int | None = None,  # of a socket for other machines; None opens one
    early: EarlyRanks | None = None,  # ranks that were started before; None starts all
) -> AnyEngine:
    """An engine for the model in a folder, ready for requests."""
    check_parallel(config.parallel)
    check_lora(config.lora)
    plan = RankGroupPlan(
        folder=folder,
        config=config,
        read_vocabulary=lambda: read_vocabulary(Path(config.tokenizer_folder or folder)),
        on_loss=on_loss,
        listener_fd=listener_fd,
        early=early or EarlyRanks(),
    )
    if config.parallel.data > 1:
        return _build_parallel(plan, on_progress)
    if config.disaggregation.mode != "null":
        return _build_with_role(plan, on_progress)
    home = open_home(plan)
    runner, facts = home.build(on_progress)
    _check_drafter(plan, facts, partial(Engine, runner))
    return Engine(runner, facts, runner.grammars, home, runner.adapters)


def _build_with_role(plan: RankGroupPlan, on_progress: OnProgress) -> Engine:
    """An engine that computes a part of each request."""
    check_role(plan.config)
    home = ModelHome(plan.folder, plan.config, plan.read_vocabulary)
    runner, facts = home.build(on_progress)
    ships_rows = facts.snapshots.row_bytes > 0
    if plan.config.disaggregation.mode == "decode":  # the other one never drafts
        _check_drafter(plan, facts, partial(Engine, runner))
    engine = Engine(runner, facts, runner.grammars, AwakeHome())
    if plan.config.disaggregation.mode == "prefill":
        offers = open_offers(runner, facts, plan.folder, plan.config, home.settings)
        engine.use_role(lambda cache: PrefillRole(cache, offers, ships_rows=ships_rows))
    else:
        fetches = open_fetches(runner, facts, plan.folder, plan.config, home.settings)
        deadline_s = plan.config.disaggregation.deadline_s
        engine.use_role(
            lambda cache: DecodeRole(cache, fetches, ships_rows=ships_rows, deadline_s=deadline_s)
        )
    return engine


def _build_parallel(plan: RankGroupPlan, on_progress: OnProgress) -> ParallelEngine:
    """One engine per rank, each with rows and pages of its own."""
    runner, facts = start_data_ranks(plan, on_progress)
    runners = [RankRunner(runner, rank) for rank in range(plan.config.parallel.data)]

    def open_engine(facts: RunnerFacts) -> ParallelEngine:
        engines = [Engine(each, facts, adapters=runner.adapters) for each in runners]
        return ParallelEngine(engines, runner)

    _check_drafter(plan, facts, open_engine)
    return open_engine(facts)


def _check_drafter(
    plan: RankGroupPlan, facts: RunnerFacts, open_engine: Callable[[RunnerFacts], AnyEngine]
) -> None:
    config = plan.config
    check_drafter(config.draft, facts, Path(config.tokenizer_folder or plan.folder), open_engine)
