"""Models with row state: ring buffers, recurrent states and module memory travel with the pages."""

from dataclasses import replace

import pytest
import torch
from support.engines import engine_of, make_submission
from support.role_traces import pair_traces, traces
from support.roles import pair_of
from support.row_matrix import sampling_of, shape_of
from support.row_models import row_model

PROMPTS = [[5, 6, 7, 8] * 10, [9] * 6, [50]]


def submissions(sampling):
    own = replace(sampling_of(sampling), trace=True)
    return [
        make_submission(f"r{i}", prompt, own, max_tokens=12) for i, prompt in enumerate(PROMPTS)
    ]


CASES = [
    (family, drafter)
    for family in ("v4", "qwen3-next", "qwen3-next-2", "v4-dspark")
    for drafter in ("none", "ngram", "modules")
    if family not in ("qwen3-next-2", "v4-dspark") or drafter == "modules"
]


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize(("family", "drafter"), CASES)
@pytest.mark.fast_cases(2)
def test_tokens_and_rounds_are_those_of_one_engine(family, drafter, sampling):
    target, drafts = row_model(family)
    draft, asked = drafts[drafter], submissions(sampling)
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, shape, draft), asked)
    with pair_of(target, draft, shape=shape) as pair:
        # The rows of the decode engine hold the states of an earlier request.
        traces(pair.decode.engine, [make_submission("x", [60] * 9, sampling_of(sampling))])
        together = pair_traces(pair, asked)
        counts, decode = pair.decode.engine.stats.transfers, pair.decode
        pair.assert_no_leak()
    num_rows = counts.total_done
    pages = sum(-(-(len(each.prompt) - 1) // shape.page_size) for each in asked)
    floor = pages * decode.pages.page_bytes + num_rows * decode.runner.row_images.row_bytes
    assert 0 < counts.total_bytes - floor < 4096  # messages
    for each in asked:
        assert together[each.request_id][:2] == alone[each.request_id][:2]
        assert together[each.request_id][2] == len(each.prompt) - 1


@pytest.mark.parametrize(("family", "drafter"), [("v4", "modules"), ("qwen3-next", "ngram")])
@pytest.mark.slow
def test_a_prefill_engine_continues_cached_prompts_from_snapshots(family, drafter):
    target, drafts = row_model(family)
    draft, asked = drafts[drafter], submissions("greedy")[:1]
    again = [replace(asked[0], request_id="again")]
    local = [replace(asked[0], request_id="local")]
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, replace(shape, prefix_cache=False), draft), asked)["r0"]
    with pair_of(target, draft, shape=shape) as pair:
        pair_traces(pair, asked)
        fetched = pair_traces(pair, again)["again"]
        assert pair.prefill.engine.stats.prefix.hit_tokens == 32
        # Nothing is fetched for this one: KV that has come has no snapshot of its own.
        computed = traces(pair.decode.engine, local)["local"]
        pair.assert_no_leak()
    assert fetched[:2] == computed[:2] == alone[:2]


@pytest.mark.parametrize(("family", "drafter"), [("v4", "modules"), ("qwen3-next", "modules")])
@pytest.mark.slow
def test_a_decode_engine_fetches_what_follows_its_own_snapshot(family, drafter):
    """The pages before it stay here; the row state that comes is that of the whole prompt."""
    target, drafts = row_model(family)
    draft, asked = drafts[drafter], submissions("sampled")[:1]
    begin = [replace(asked[0], request_id="begin", prompt=asked[0].prompt[:34])]
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, replace(shape, prefix_cache=False), draft), asked)["r0"]
    with pair_of(target, draft, shape=shape) as pair:
        traces(pair.decode.engine, begin)
        hits = pair.decode.engine.stats.prefix.hit_tokens
        fetched = pair_traces(pair, asked)["r0"]
        assert pair.decode.engine.stats.prefix.hit_tokens - hits == 32, "no snapshot was found"
        moved = pair.decode.engine.stats.transfers.total_bytes
        floor = pair.decode.pages.page_bytes + pair.decode.runner.row_images.row_bytes
        pair.assert_no_leak()
    assert fetched[:2] == alone[:2]
    assert fetched[2] == len(asked[0].prompt) - 1
    assert 0 < moved - floor < 4096  # one page of three, the row, and messages


@pytest.mark.parametrize(("family", "drafter"), [("v4", "modules"), ("qwen3-next", "none")])
@pytest.mark.slow
def test_lost_row_state_changes_the_answer(family, drafter):
    target, drafts = row_model(family)
    draft, asked = drafts[drafter], submissions("greedy")[:1]
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, shape, draft), asked)
    with pair_of(target, draft, shape=shape) as pair:
        rows = pair.decode.runner.row_images
        keep = rows.keep
        rows.keep = lambda room, image: keep(room, image * 0)
        together = pair_traces(pair, asked)
    assert together["r0"] != alone["r0"]


def rolled(rows, image):
    """An image whose ring buffers stand one slot later. Slots are the first axis of each."""
    parts, start = [], 0
    for each in rows._tensors:
        own = image[start : start + each[0].numel() * each.element_size()]
        parts.append(own.view(each.shape[1], -1).roll(1, dims=0).reshape(-1))
        start += own.numel()
    return torch.cat(parts)


@pytest.mark.parametrize("drafter", ["none", "modules"])
def test_ring_buffers_that_stand_one_position_late_are_noticed(drafter):
    target, drafts = row_model("v4")
    draft, asked = drafts[drafter], submissions("greedy")[:1]
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, shape, draft), asked)["r0"]
    with pair_of(target, draft, shape=shape) as pair:
        rows = pair.decode.runner.row_images
        assert len({each.shape[1] for each in rows._tensors}) > 1  # windows, and open blocks
        keep = rows.keep
        rows.keep = lambda room, image: keep(room, rolled(rows, image))
        late = pair_traces(pair, asked)["r0"]
        assert late[2] == len(asked[0].prompt) - 1, "the KV did not come"
        pair.assert_no_leak()
    # With three likely words a token can survive; its log-probability does not.
    assert [each.chosen for each in late[3]] != [each.chosen for each in alone[3]]
    assert late[:2] != alone[:2]


@pytest.mark.slow
def test_lost_module_memory_changes_the_drafts_and_no_token():
    target, drafts = row_model("qwen3-next-2")
    # Short prompts, so that the one stale position of the second module weighs much.
    prompts = [[9, 30, 4], [44, 3, 21, 60], [12, 50, 50, 7], [33, 8]]
    own = replace(sampling_of("greedy"), trace=True)
    draft = drafts["modules"]
    asked = [make_submission(f"r{i}", each, own, max_tokens=6) for i, each in enumerate(prompts)]
    shape = shape_of(draft, chunk=64)
    alone = traces(engine_of(target, shape, draft), asked)
    with pair_of(target, draft, shape=shape) as pair:
        num_pairs = pair.decode.runner.row_images._tensors[-1]
        place = pair.decode.runner.row_images.place

        def place_without_memory(row, room):
            place(row, room)
            num_pairs[row] = 0

        pair.decode.runner.row_images.place = place_without_memory
        together = pair_traces(pair, asked)
    assert [own[0] for own in together.values()] == [own[0] for own in alone.values()]
    assert [own[1] for own in together.values()] != [own[1] for own in alone.values()]


@pytest.mark.slow
def test_requests_that_hold_all_pages_give_way():
    """KV has come for two requests, and neither has the pages to go on."""
    target, drafts = row_model("qwen3-next")
    asked = submissions("greedy")[:1]
    asked += [replace(asked[0], request_id="again", prompt=asked[0].prompt[::-1])]
    shape = shape_of(drafts["none"], chunk=64, max_context=64)
    small = replace(shape, kv_tokens=6 * 16)
    alone = traces(engine_of(target, shape), asked)
    with pair_of(target, drafts["none"], shape=shape, decode_shape=small) as pair:
        answers = pair.answer(asked)
        for each in asked:
            assert answers[each.request_id].tokens == alone[each.request_id][0]
        pair.assert_no_leak()
