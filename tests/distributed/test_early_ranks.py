"""Ranks that are started before their job is known end if none comes."""

import os

import pytest
from support.spoken import tiny_llama

from outrider import LLM
from outrider.config.early_ranks import EarlyRanks, WaitingRank, num_early_ranks
from outrider.config.engine_config import NodesConfig, ParallelConfig
from outrider.errors import ConfigError
from tests.support.processes import descendants_of, is_running


def test_a_machine_starts_its_own_ranks_but_the_first_and_not_more_than_it_has_cores():
    assert num_early_ranks(ParallelConfig()) == 0
    assert num_early_ranks(ParallelConfig(tensor=2)) == 1
    assert num_early_ranks(ParallelConfig(data=2, is_expert_parallel=True)) == 1
    assert num_early_ranks(ParallelConfig(tensor=4, nodes=NodesConfig(num=2))) == 1
    cores = len(os.sched_getaffinity(0))
    assert num_early_ranks(ParallelConfig(tensor=10_000)) == max(cores - 1, 1)


def test_ranks_without_a_job_end_with_those_who_started_them():
    early = EarlyRanks(2)
    taken = early.take()
    early.close()
    assert taken.process.poll() is None
    taken.close()
    assert taken.process.poll() is not None


@pytest.mark.slow
def test_a_rank_ends_quietly_when_its_owner_ends_before_the_job_comes(capfd):
    waiting = WaitingRank()
    waiting.process.stdin.close()  # as when the owner is killed
    assert waiting.process.wait(120) == 0
    assert capfd.readouterr().err == ""
    waiting.close()


@pytest.mark.slow
def test_a_group_that_cannot_start_leaves_no_rank(tmp_path):

    tiny_llama().save_pretrained(tmp_path)
    before = set(descendants_of(os.getpid()))
    with pytest.raises(ConfigError, match="rank"):
        LLM(tmp_path, draft="none", device="cpu", tensor_parallel_size=3)
    assert not [pid for pid in set(descendants_of(os.getpid())) - before if is_running(pid)]
