"""Transfers by NIXL, over UCX in host memory; skipped where the extra `disagg` is not installed."""

import os
import time
from pathlib import Path

import pytest
from support.engines import Shape
from support.processes import wait_until
from support.role_traces import assert_same_rounds, draft_of, submissions
from support.roles import make_half
from support.row_matrix import shape_of
from support.row_models import row_model

pytest.importorskip("nixl_cu13", reason="pip install 'outrider[disagg]'")

from outrider.disaggregation import nixl_pages
from outrider.disaggregation.nixl_pages import NixlMemory, _runs
from outrider.runtime.draft_kinds import NoDraft


def threads():
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


def cpu_s(tasks):
    """Processor time that threads of this process have used."""
    fields = [Path(f"/proc/self/task/{each}/stat").read_text().rsplit(")", 1)[1] for each in tasks]
    ticks = sum(int(each) for own in fields for each in own.split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_the_threads_of_an_idle_engine_need_no_processor(models):
    """A thread that polls without a pause gets a share of a second even on a busy machine."""
    pages, before = make_half(models.target, Shape(), NoDraft()).pages, threads()
    memory = NixlMemory(pages)
    own = threads() - before
    assert own, "NIXL has no thread"
    used_s = cpu_s(own)
    time.sleep(1.5)
    assert cpu_s(own) - used_s < 0.1
    assert memory.describe()["metadata"]


def read_one_page(memory, welcome):
    read = memory.begin_read(welcome, [1], [2])
    wait_until(read.is_over)
    return read


def test_agents_of_servers_that_are_gone_are_forgotten(models, monkeypatch):
    """A server that starts again is another agent, and nothing tells that the old one is gone."""
    monkeypatch.setattr(nixl_pages, "_MAX_IDLE_PEERS", 1)
    halves = [make_half(models.target, Shape(kv_tokens=64), NoDraft()) for _ in range(4)]
    memory, *others = (NixlMemory(each.pages) for each in halves)
    forgotten, forget = [], memory._agent.remove_remote_agent
    monkeypatch.setattr(
        memory._agent, "remove_remote_agent", lambda name: (forgotten.append(name), forget(name))
    )
    welcomes = [each.describe() for each in others]
    for welcome in welcomes:
        assert read_one_page(memory, welcome).is_done()
    assert len(memory._peers) == 2
    assert read_one_page(memory, welcomes[0]).is_done(), "it can be asked again"
    assert len(memory._peers) == 2
    assert len(forgotten) == 2


def test_the_agent_of_a_read_that_failed_is_forgotten(models, monkeypatch):
    memory, other = (NixlMemory(make_half(models.target, Shape(), NoDraft()).pages) for _ in "ab")
    read = memory.begin_read(other.describe(), [1], [2])
    look = memory._agent.check_xfer_state
    monkeypatch.setattr(memory._agent, "check_xfer_state", lambda handle: "ERR")
    wait_until(lambda: look(read._handle) == "DONE")  # else it could not be released
    assert read.is_over()
    assert not memory._peers
    with pytest.raises(ConnectionError, match="the read failed"):
        read.is_done()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "eagle3", "modules"])
def test_tokens_and_rounds_are_those_of_one_engine(models, name):
    draft, asked = draft_of(models, name), submissions("sampled")
    assert_same_rounds(models.target, draft, asked, shape=Shape(), backend="nixl")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["v4", "qwen3-next"])
def test_row_state_comes_beside_the_pages(family):
    target, drafts = row_model(family)
    shape = shape_of(drafts["modules"], chunk=64)
    asked = submissions("greedy")
    assert_same_rounds(target, drafts["modules"], asked, shape=shape, backend="nixl")


def test_neighbouring_pages_are_one_range():
    assert list(_runs([4, 5, 6, 9], [1, 2, 7, 8])) == [(4, 1, 2), (6, 7, 1), (9, 8, 1)]
    assert list(_runs([], [])) == []
