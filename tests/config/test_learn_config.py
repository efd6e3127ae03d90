"""Servers that cannot learn are refused by name, before a model is loaded."""

import pytest

from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import DisaggregationConfig, EngineConfig, ParallelConfig
from outrider.config.learn_config import check_learning
from outrider.errors import ConfigError

HEAD = DraftConfig(drafter="/a/head")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (EngineConfig(draft=DraftConfig(drafter="none")), "no head to train"),
        (EngineConfig(draft=DraftConfig(drafter="mtp")), "mtp drafts with modules of the target"),
        (EngineConfig(draft=DraftConfig(drafter="ngram")), "ngram looks up text"),
        (EngineConfig(draft=DraftConfig(drafter="suffix")), "suffix looks up text"),
        (EngineConfig(draft=HEAD, parallel=ParallelConfig(tensor=2)), "--tensor-parallel-size"),
        (EngineConfig(draft=HEAD, parallel=ParallelConfig(data=2)), "--data-parallel-size"),
        (
            EngineConfig(draft=HEAD, disaggregation=DisaggregationConfig(mode="decode")),
            "--disaggregation-mode decode",
        ),
    ],
)
def test_what_cannot_learn_is_refused_by_name(config, reason):
    with pytest.raises(ConfigError, match=reason):
        check_learning(config)


def test_a_head_of_one_process_may_learn():
    check_learning(EngineConfig(draft=HEAD))
