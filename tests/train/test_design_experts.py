"""Heads for targets with a mixture of experts."""

import pytest
from support.tiny import save_tiny

from outrider.errors import ConfigError
from outrider.train.head_design import HeadDesign, head_fields


def test_a_target_with_experts_is_refused_when_the_head_is_designed(tmp_path):
    save_tiny("mixtral", tmp_path)
    design = HeadDesign(
        layout="eagle3",
        draft_vocab=16,
        layers=1,
        masked_drafts=0,
        intermediate=0,
        heads=0,
        kv_heads=0,
    )
    with pytest.raises(ConfigError, match="use a dense target"):
        head_fields(design, tmp_path)
