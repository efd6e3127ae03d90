"""Medians and ratios of a report written by hand."""

import pytest

from outrider.bench.machine import this_machine
from outrider.bench.offline.decode_floor import DecodeFloor
from outrider.bench.offline.offline_args import Lengths
from outrider.bench.offline.offline_report import (
    Decode,
    EngineResult,
    OfflineReport,
    OfflineSetting,
)
from outrider.bench.offline.run_trace import DecodeSpeed
from outrider.bench.offline.workload import Workload


def result(engine, dtype, *rates):
    runs = tuple(DecodeSpeed(tokens_per_s=rate, step_s=1 / rate) for rate in rates)
    return EngineResult(
        engine=engine,
        version="1",
        dtype=dtype,
        first_token_runs_s=(0.3, 0.1, 0.2),
        decodes=(Decode(batch=1, runs=runs),),
    )


def report(*results, bandwidth=1000.0):
    lengths = Lengths(prompt=2, answer=2)
    floors = tuple(
        DecodeFloor(dtype=dtype, batch=1, weight_bytes=size, kv_bytes=0, bandwidth=bandwidth)
        for dtype, size in (("float32", 4), ("int8", 1))
    )
    setting = OfflineSetting(
        model="m",
        machine=this_machine(has_busy_neighbour=False),
        workload=Workload(prompts=((1, 2),), lengths=lengths, origin="by hand"),
        bandwidth=bandwidth,
    )
    return OfflineReport(setting=setting, floors=floors, results=results, missing=())


def test_the_median_run_counts():
    ours = result("outrider", "float32", 10.0, 90.0, 20.0)
    assert ours.at(1).tokens_per_s == 20.0
    assert ours.first_token_s == 0.2
    assert report(ours).of_floor(ours, 1) == pytest.approx(20.0 / 250.0)


def test_a_peer_is_met_with_equal_weights_or_else_with_its_first():
    ours = result("outrider", "float32", 20.0), result("outrider", "int8", 60.0)
    both = result("both", "float32", 10.0), result("both", "int8", 30.0)
    made = report(*ours, *both, result("plain", "float32", 5.0))
    assert made.peers == ("both", "plain")
    assert [made.against("both", each, 1) for each in ours] == [2.0, 2.0]
    assert [made.against("plain", each, 1) for each in ours] == [4.0, 12.0]


@pytest.mark.parametrize(("bandwidth", "is_beaten"), [(100.0, False), (70.0, True)])
def test_a_beaten_floor_is_noticed(bandwidth, is_beaten):
    ours = result("outrider", "float32", 20.0)  # needs 80 bytes per second
    assert report(ours, bandwidth=bandwidth).is_floor_beaten is is_beaten
