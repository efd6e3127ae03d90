"""Flags of three engines become one DraftConfig; values of "auto"; sizes that are refused."""

import pytest

from outrider.config.draft_config import (
    DraftConfig,
    MatchLengths,
    TreeSize,
    check_fit,
    fit_modules,
    resolve_budget,
)
from outrider.config.draft_dialects import choose_dialect, from_sglang, from_vllm
from outrider.errors import ConfigError

VLLM = [
    ({"method": "ngram", "num_speculative_tokens": 5}, ("ngram", 5, 1, 6)),
    ({"model": "[ngram]", "num_speculative_tokens": 2}, ("ngram", 2, 1, 3)),
    ({"method": "ngram"}, ("ngram", 7, 1, 8)),
    ({"method": "suffix"}, ("suffix", 15, 1, 16)),
    ({"model": "small", "num_speculative_tokens": 4}, ("small", 4, 1, 5)),
    ({"method": "draft_model", "model": "small"}, ("small", 3, 1, 4)),
    ({"method": "eagle3", "model": "head", "num_speculative_tokens": 1}, ("head", 1, 1, 2)),
]
SGLANG = [
    ({"algorithm": "EAGLE3", "draft_model_path": "head"}, ("head", 3, 1, 4)),
    (
        {
            "algorithm": "EAGLE",
            "draft_model_path": "head",
            "num_steps": 5,
            "eagle_topk": 4,
            "num_draft_tokens": 16,
        },
        ("head", 5, 4, 16),
    ),
    ({"algorithm": "standalone", "draft_model_path": "m", "num_steps": 2}, ("m", 2, 1, 3)),
    # SGLang counts the root: six draft tokens of a chain are five steps, as vLLM's K = 5.
    ({"algorithm": "NGRAM", "num_draft_tokens": 6}, ("ngram", 5, 1, 6)),
]
OURS = [
    (DraftConfig(drafter="small"), ("small", 3, 1, 4)),
    (DraftConfig(drafter="ngram"), ("ngram", 7, 1, 8)),
    (DraftConfig(drafter="suffix"), ("suffix", 15, 1, 16)),
    (DraftConfig(drafter="small", topk=4), ("small", 3, 4, 13)),
    (DraftConfig(drafter="small", topk=64), ("small", 2, 64, 64)),
    (DraftConfig(drafter="small", steps=5, nodes=3), ("small", 2, 1, 3)),
    (DraftConfig(drafter="small", steps=1, topk=3, nodes=20), ("small", 1, 3, 4)),
    (DraftConfig(drafter="small", nodes=1), ("small", 1, 1, 1)),
    (DraftConfig(drafter="small", nodes=6), ("small", 5, 1, 6)),
    (DraftConfig(drafter="none"), ("none", 0, 1, 1)),
]


def resolved(config):
    settings = resolve_budget(config)
    tree = settings.tree
    return settings.drafter, tree.steps, tree.topk, tree.nodes


@pytest.mark.parametrize(("fields", "expected"), VLLM, ids=str)
def test_vllm_sizes_count_drafts_without_the_root(fields, expected):
    assert resolved(from_vllm(fields)) == expected


@pytest.mark.parametrize(("flags", "expected"), SGLANG, ids=str)
def test_sglang_sizes_count_the_root(flags, expected):
    assert resolved(from_sglang(flags)) == expected


@pytest.mark.parametrize(("config", "expected"), OURS, ids=str)
def test_a_size_that_is_missing_follows_from_the_others(config, expected):
    assert resolved(config) == expected


def test_vllms_lookup_lengths_are_the_match_lengths():
    fields = {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 3}
    assert from_vllm(fields).match == MatchLengths(min=3, max=5)
    assert from_vllm({"method": "ngram", "prompt_lookup_max": 1}).match == MatchLengths(
        min=1, max=1
    )


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (DraftConfig(drafter="m", steps=2, nodes=9), "nodes 9 becomes 3"),
        (DraftConfig(drafter="m", steps=9, nodes=4), "steps 9 becomes 3"),
        (DraftConfig(drafter="none", steps=9), "no effect without a drafter"),
    ],
)
def test_sizes_that_cannot_be_used_are_reduced_with_a_note(config, note):
    (found,) = resolve_budget(config).notes
    assert note in found


def test_sizes_that_can_be_used_are_not_changed():
    assert resolve_budget(DraftConfig(drafter="m", steps=4, topk=3, nodes=31)).notes == ()


@pytest.mark.parametrize(
    ("sizes", "fix"),
    [
        ({"steps": 0}, "change --steps .--draft none"),
        ({"steps": 64}, "between 1 and 63"),
        ({"topk": 0}, "change --topk"),
        ({"nodes": 65}, "between 1 and 64"),
        ({"nodes": -1}, "change --nodes"),
        ({"steps": "3"}, "between 1 and 63, got '3'"),
        ({"steps": 4, "topk": 22}, "lower --steps or --topk"),
        ({"match": MatchLengths(min=3, max=2)}, "at most the longest"),
    ],
)
def test_a_size_that_cannot_work_is_refused_in_one_line_that_names_the_fix(sizes, fix):
    with pytest.raises(ConfigError, match=fix) as caught:
        resolve_budget(DraftConfig(drafter="small", **sizes))
    assert "\n" not in str(caught.value)


def test_an_ngram_drafter_has_no_branches_to_store():
    settings = resolve_budget(DraftConfig(drafter="ngram", steps=15, topk=8, nodes=32))
    assert settings.tree == TreeSize(steps=15, topk=8, nodes=32)


@pytest.mark.parametrize(
    ("vocab_size", "max_context", "fix"), [(3, 100, "lower --topk"), (50, 5, "lower --steps")]
)
def test_a_tree_larger_than_vocabulary_or_context_is_refused(vocab_size, max_context, fix):
    settings = resolve_budget(DraftConfig(drafter="small", steps=5, topk=4, nodes=20))
    with pytest.raises(ConfigError, match=fix):
        check_fit(settings, vocab_size=vocab_size, max_context=max_context)
    check_fit(settings, vocab_size=4, max_context=6)


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"method": "mlp_speculator", "model": "x"}, "use one of ngram, suffix, mtp, draft_model"),
        ({"method": ["mtp"]}, "use one of ngram, suffix, mtp, draft_model"),
        ({"method": "eagle"}, "needs a model"),
        ({"method": "ngram", "model": "x"}, "takes no model"),
        ({"method": "suffix", "model": "x"}, "takes no model"),
        ({"method": "deepseek_mtp", "model": "x"}, "the target holds its modules"),
        ({"method": "eagle", "model": "ngram"}, "takes no model"),
        ({"num_speculative_tokens": 3}, 'lacks "method"; add one of ngram'),
        ({}, 'lacks "method"; add one of ngram'),
        ({"model": "x", "num_speculative_tokens": 64}, "num_speculative_tokens must .* at most 63"),
        ({"model": "x", "num_speculative_tokens": 0}, "at least 1"),
        ({"model": "x", "num_speculative_tokens": True}, "an integer"),
        ({"model": "x", "disable_padded_drafter_batch": True}, "unknown key"),
        ({"model": "x", "draft_tensor_parallel_size": 2}, "leave it out"),
        ({"model": "x", "parallel_drafting": "yes"}, "true or false"),
    ],
)
def test_a_speculative_config_of_vllm_that_cannot_work_is_refused(fields, fix):
    with pytest.raises(ConfigError, match=fix):
        from_vllm(fields)


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ({"num_steps": 3}, "need --speculative-algorithm"),
        ({"algorithm": "MEDUSA", "draft_model_path": "x"}, "use one of EAGLE"),
        ({"algorithm": "NEXTN", "draft_model_path": "x"}, "leave out"),
        ({"algorithm": "EAGLE3"}, "add --speculative-draft-model-path"),
        ({"algorithm": "NGRAM", "draft_model_path": "x"}, "leave out"),
        ({"algorithm": "NGRAM", "num_draft_tokens": 0}, "at least 1"),
        ({"algorithm": "NGRAM", "num_draft_tokens": 65}, "--speculative-num-draft-tokens must"),
        ({"algorithm": "NGRAM", "num_steps": 64}, "--speculative-num-steps must be .* at most 63"),
        ({"algorithm": "NGRAM", "eagle_topk": 65}, "--speculative-eagle-topk must be"),
        (
            {"algorithm": "EAGLE", "draft_model_path": "x", "num_steps": 9, "eagle_topk": 9},
            "lower --speculative-num-steps or --speculative-eagle-topk",
        ),
    ],
)
def test_flags_of_sglang_that_cannot_work_are_refused(flags, fix):
    with pytest.raises(ConfigError, match=fix):
        from_sglang(flags)


def test_two_dialects_at_once_are_refused():
    ngram, own = {"method": "ngram"}, DraftConfig(steps=2)
    assert choose_dialect(own, vllm=None, sglang={}) == own
    assert choose_dialect(DraftConfig(), vllm=ngram, sglang={}).drafter == "ngram"
    steady = DraftConfig(adaptive=False)  # no other dialect has this setting
    assert choose_dialect(steady, vllm=ngram, sglang={}) == DraftConfig(
        drafter="ngram", topk=1, adaptive=False
    )
    assert not choose_dialect(steady, vllm=None, sglang={"algorithm": "NGRAM"}).adaptive
    assert (
        choose_dialect(DraftConfig(), vllm=None, sglang={"algorithm": "NGRAM"}).drafter == "ngram"
    )
    for kind in ({"vllm": ngram, "sglang": {}}, {"vllm": None, "sglang": {"algorithm": "NGRAM"}}):
        with pytest.raises(ConfigError, match="keep one of them"):
            choose_dialect(own, **kind)


def test_an_empty_speculative_config_is_refused_for_its_missing_method():
    with pytest.raises(ConfigError, match='lacks "method"'):
        choose_dialect(DraftConfig(), vllm={}, sglang={})


def test_dspark_without_a_model_is_the_drafter_inside_of_the_target():
    assert from_vllm({"method": "dspark"}).drafter == "mtp"
    assert from_vllm({"method": "dspark", "model": "x"}).drafter == "x"
    assert from_sglang({"algorithm": "dspark"}).drafter == "mtp"
    assert from_sglang({"algorithm": "DSPARK", "draft_model_path": "x"}).drafter == "x"


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_5_mtp"])
def test_every_dialect_has_a_name_for_modules_inside_the_target(method):
    chain = {"steps": 2, "topk": 1, "nodes": 3}
    assert from_vllm({"method": method, "num_speculative_tokens": 2}) == DraftConfig(
        drafter="mtp", **chain
    )
    flags = {"algorithm": "nextn", "num_steps": 2, "eagle_topk": 1, "num_draft_tokens": 3}
    assert from_sglang(flags) == DraftConfig(drafter="mtp", **chain)


@pytest.mark.parametrize(
    ("sizes", "num_modules", "tree"),
    [
        ({}, 1, TreeSize(steps=3, topk=1, nodes=4)),  # one module is repeated, as any draft model
        ({"topk": 2}, 1, TreeSize(steps=3, topk=2, nodes=7)),
        ({}, 2, TreeSize(steps=2, topk=1, nodes=3)),
        ({}, 5, TreeSize(steps=5, topk=1, nodes=6)),
        ({"steps": 2}, 5, TreeSize(steps=2, topk=1, nodes=3)),
        ({"nodes": 3}, 5, TreeSize(steps=2, topk=1, nodes=3)),
    ],
)
def test_modules_draft_a_chain_with_one_step_per_module(sizes, num_modules, tree):
    config = DraftConfig(drafter="mtp", **sizes)
    assert resolve_budget(fit_modules(config, num_modules=num_modules)).tree == tree


@pytest.mark.parametrize(
    ("sizes", "fix"),
    [
        ({"topk": 2}, "use --topk 1"),
        ({"steps": 4}, "3 draft modules"),
        ({"nodes": 5}, "lower --steps"),
    ],
)
def test_modules_refuse_trees_and_more_steps_than_modules(sizes, fix):
    with pytest.raises(ConfigError, match=fix):
        fit_modules(DraftConfig(drafter="mtp", **sizes), num_modules=3)
