"""Numbers of processes and machines that cannot work are refused by name."""

import pytest

from outrider.config.engine_config import NodesConfig, ParallelConfig
from outrider.config.parallel_checks import check_parallel
from outrider.errors import ConfigError

TWO = NodesConfig(num=2, address="10.0.0.1:5000")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ParallelConfig(tensor="2"), "tensor_parallel_size must be a whole number, got '2'"),
        (ParallelConfig(tensor=2.5), "tensor_parallel_size must be a whole number, got 2.5"),
        (ParallelConfig(tensor=True), "tensor_parallel_size must be a whole number, got True"),
        (ParallelConfig(tensor=0), "tensor_parallel_size must be at least 1, got 0"),
        (ParallelConfig(data=-1), "data_parallel_size must be at least 1, got -1"),
        (ParallelConfig(timeout_s=0), "rank_timeout must be above 0, got 0"),
        (ParallelConfig(timeout_s=float("nan")), "rank_timeout must be above 0, got nan"),
        (ParallelConfig(tensor=3, nodes=TWO), "3 ranks cannot be divided among 2 machines"),
        (ParallelConfig(nodes=NodesConfig(rank=1)), "got 1 of 1 machines"),
        (ParallelConfig(tensor=2, nodes=NodesConfig(num=2)), "must be HOST:PORT of machine 0"),
        (ParallelConfig(tensor=2, nodes=NodesConfig(num=2, address="a:0")), "got 'a:0'"),
    ],
    ids=lambda each: "" if isinstance(each, ParallelConfig) else each.replace(" ", "_"),
)
def test_what_cannot_work_is_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=message):
        check_parallel(config)


def test_what_can_work_passes():
    check_parallel(ParallelConfig(tensor=4, nodes=TWO))
