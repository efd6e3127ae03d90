"""Transfers by NIXL, over UCX in host memory; skipped where the extra `disagg` is not installed."""

import pytest
from support.engines import Shape, engine_of
from support.role_traces import draft_of, pair_traces, submissions, traces
from support.roles import pair_of

pytest.importorskip("nixl", reason="pip install --no-deps nixl nixl-cu13")

from outrider.disaggregation.nixl_pages import NixlSink, NixlSource, _runs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "eagle3", "modules"])
def test_tokens_and_rounds_are_those_of_one_engine(models, name):
    draft, asked = draft_of(models, name), submissions("sampled")
    alone = traces(engine_of(models.target, Shape(prefix_cache=False), draft), asked)
    with pair_of(
        models.target, draft, make_source=lambda pages, _: NixlSource(pages), make_sink=NixlSink
    ) as pair:
        together = pair_traces(pair, asked)
        assert pair.decode.engine.stats.transfers.total_failed == 0
        assert together["r2"][2] > 0
        pair.assert_no_leak()
    for each in asked:
        assert together[each.request_id][:2] == alone[each.request_id][:2]


def test_neighbouring_pages_are_one_range():
    assert list(_runs([4, 5, 6, 9], [1, 2, 7, 8])) == [(4, 1, 2), (6, 7, 1), (9, 8, 1)]
    assert list(_runs([], [])) == []
