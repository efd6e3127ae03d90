"""gpt-oss: MXFP4 experts as published, sinks, biases and the fields of its config.json."""

import json
from dataclasses import replace

import pytest
import torch
from support.decoders import expected_logits, harness_of, prompt
from support.gpt_oss import PackedModels, write_gpt_oss
from support.rank_models import own_requests
from support.styled_models import mismatches
from support.thread_ranks import ThreadGroup

from outrider.models.model_config import parse_config, read_config
from outrider.models.rank_share import share_of
from outrider.models.rope_scaling import YarnScaling


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt-oss")
    return folder, write_gpt_oss(folder)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("size", [1, 2])
def test_mxfp4_experts_are_the_numbers_they_stand_for(written, size):
    (folder, model), tokens = written, prompt(20)
    group = ThreadGroup(size)

    def logits_of(name):
        def run(rank):
            return harness_of(folder / name, ranks=group.ranks[rank]).run({}, {1: (0, tokens)})

        return group.run(run)[0]

    packed = logits_of("packed")
    assert torch.equal(packed, logits_of("plain"))
    assert (packed - expected_logits(model, tokens)).abs().max() <= 2e-4


def test_ranks_part_no_block_of_codes(written):
    config = read_config(written[0] / "packed")
    published = replace(config, experts=replace(config.experts, intermediate=2880))
    group = ThreadGroup(4)
    shares = [share_of(published, rank).experts.intermediate for rank in group.ranks]
    assert shares == [736, 736, 704, 704]
    shares = [share_of(config, rank).experts.intermediate for rank in group.ranks]
    assert shares == [24] * 4  # there are three blocks


@pytest.mark.slow
def test_drafts_change_no_token_of_mxfp4_experts(tmp_path):
    case = {"drafter": "ngram", "tree": "tree", "is_hit": 1, "seed": 2}
    assert not mismatches(PackedModels(tmp_path), **case)


def test_ranks_with_whole_experts_add_every_bias_once(written):
    (folder, model), tokens = written, prompt(20)
    group = ThreadGroup(2)

    def run(rank):
        own = own_requests(group.ranks[rank])
        return harness_of(folder / "packed", ranks=own).run({}, {1: (0, tokens)})

    for logits in group.run(run):
        assert (logits - expected_logits(model, tokens)).abs().max() <= 2e-4


def test_absent_fields_mean_what_they_mean_in_transformers(written):
    fields = json.loads((written[0] / "plain" / "config.json").read_text())
    for key in ("rope_parameters", "sliding_window", "layer_types", "swiglu_limit"):
        fields.pop(key, None)
    config = parse_config(fields)
    assert config.pattern.windows == (128, 1 << 30, 128)
    assert config.experts.gate.limit == 7.0
    scaling = config.rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_context, scaling.is_truncated) == (32.0, 4096, False)
    assert config.rope.theta == 150000.0
