"""Starts a group of ranks: this process becomes rank 0 and starts or awaits the others."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider.config.early_ranks import EarlyRanks
from outrider.config.engine_config import EngineConfig
from outrider.config.node_address import listen_for_nodes
from outrider.distributed.rank_group import ProcessRanks
from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.rank_share import check_share
from outrider.models.target import read_target
from outrider.runtime.join_ranks import await_ranks, join_ranks, model_ranks, open_store
from outrider.runtime.launch_ranks import ProcessLauncher, RankLauncher
from outrider.runtime.model_home import ModelHome
from outrider.runtime.rank_messages import MeetingPoint
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.runner import Runner
from outrider.structured.grammar_cache import read_no_vocabulary
from outrider.wire.grammar_spec import Vocabulary
from outrider.wire.runner_facts import OnProgress, RunnerFacts

OnLoss = Callable[[], None]


def ignore_loss() -> None:
    """An `OnLoss` for a process that learns of the loss by its next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroupPlan:
    """The model that a group computes, and what is called when one of its ranks is lost."""

    folder: Path
    config: EngineConfig
    read_vocabulary: Callable[[], Vocabulary] = read_no_vocabulary
    on_loss: OnLoss = ignore_loss  # called by a thread
    listener_fd: int | None = None  # of a socket for other machines that outlives this process
    early: EarlyRanks = field(default_factory=EarlyRanks)  # that wait for their jobs

    def listen(self) -> socket.socket:
        """The socket by which other machines come."""
        if self.listener_fd is None:
            return listen_for_nodes(self.config.parallel.nodes)
        return socket.socket(fileno=os.dup(self.listener_fd))


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A group whose ranks have all loaded their share."""

    first: Runner
    ranks: ProcessRanks
    others: RankProcesses
    facts: RunnerFacts


def start_group(plan: RankGroupPlan, on_progress: OnProgress) -> StartedGroup:
    """The group, or the reason why it cannot start; then no process of it is left."""
    config = plan.config
    _check_share(plan.folder, config.parallel.tensor)
    parallel, launcher = config.parallel, _open_launcher(plan)
    store = open_store(launcher.host)
    meeting = MeetingPoint(host=launcher.host, port=store.port, own_host=launcher.host)
    jobs = launcher.jobs(meeting)
    links = launcher.start(jobs[1:], store.port)
    others = RankProcesses(links, timeout_s=config.parallel.timeout_s, on_loss=plan.on_loss)
    try:
        await_ranks(store, parallel.tensor * parallel.data, lambda: others.loss)
        ranks = join_ranks(jobs[0], store)
        shared = model_ranks(ranks, config.parallel)
        home = ModelHome(plan.folder, jobs[0].config, plan.read_vocabulary, ranks=shared)
        runner, facts = home.build(on_progress)
        held = facts.memory.ranks + others.wait_until_ready()
    except (RuntimeError, AssertionError) as error:
        reason = others.explain(error)
        others.close()
        if not others.loss:  # a mistake of ours, on this rank
            raise
        raise ConfigError(reason) from error
    except BaseException:
        others.close()
        raise
    ranks.expect_prompt_ranks()
    facts = replace(facts, memory=replace(facts.memory, ranks=held))
    return StartedGroup(runner, ranks, others, facts)


def _check_share(folder: Path, size: int) -> None:
    """Refuse too many ranks before any is started. (A DeepSeek-V4 refuses them when it loads.)"""
    model = read_target(folder)
    if not isinstance(model, V4Config):
        check_share(model, size)


def _open_launcher(plan: RankGroupPlan) -> RankLauncher:
    if plan.config.parallel.nodes.backend == "ray":
        from outrider.runtime.ray_ranks import RayLauncher  # the launcher of few users

        return RayLauncher(plan.folder, plan.config)
    return ProcessLauncher(plan.folder, plan.config, early=plan.early, listen=plan.listen)
