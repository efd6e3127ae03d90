"""A prefill server captures no shape with decode rows, whatever the other flags say."""

from dataclasses import replace

import pytest

from outrider.config.engine_config import DisaggregationConfig, EngineConfig, ExecutionConfig
from outrider.config.settings import resolve_settings
from outrider.runtime.build_runner import _largest, choose_buckets
from outrider.runtime.draft_kinds import NgramDraft
from outrider.runtime.draft_rungs import rungs_of
from outrider.runtime.warmup import list_shapes
from outrider.wire.draft_budget import Budget

DRAFT = NgramDraft(budget=Budget(steps=3, topk=2, nodes=6), min_match=1, max_match=4)


@pytest.mark.parametrize("executor", ["auto", "graph", "breakable"])
@pytest.mark.parametrize("mode", ["null", "prefill", "decode"])
def test_captured_shapes_have_decode_rows_unless_the_server_prefills(mode, executor):
    config = EngineConfig(
        device="cuda",
        execution=ExecutionConfig(executor=executor, record="at start"),
        disaggregation=DisaggregationConfig(mode=mode),
    )
    settings = resolve_settings(config, model_context=2048, num_cuda=1)
    settings = replace(settings, host=replace(settings.host, max_rows=4))
    buckets = choose_buckets(settings, DRAFT)
    largest = _largest(settings.host, DRAFT, buckets)
    shapes = list_shapes(largest, buckets, rungs_of(DRAFT, buckets, settings.execution))
    assert shapes
    assert any(shape.rows for shape in shapes) == (mode != "prefill")
