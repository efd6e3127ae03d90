"""Transfers by NIXL, over UCX in host memory; skipped where the extra `disagg` is not installed."""

import os
import time
from pathlib import Path

import pytest
from support.engines import Shape
from support.role_traces import assert_same_rounds, draft_of, submissions
from support.roles import make_half
from support.row_matrix import shape_of
from support.row_models import row_model

pytest.importorskip("nixl_cu13", reason="pip install 'outrider[disagg]'")

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
