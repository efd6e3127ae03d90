"""Models with row state continue a cached text exactly as if they had computed it."""

import random
from dataclasses import replace

import pytest
from support.engines import engine_of, make_submission, run_all
from support.role_traces import traces
from support.row_chats import (
    CASES,
    Turn,
    cold_and_warm,
    has_same_bits,
    is_same,
    random_texts,
    saving,
)
from support.row_harness import PAGE_SIZE
from support.row_matrix import sampling_of, shape_of
from support.row_models import row_model

from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.engine.prefix_cache.snapshot_slots import SnapshotSlots
from outrider.runtime.row_snapshots import RowSnapshots


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("family", "drafter"), CASES)
def test_a_cached_turn_has_the_tokens_drafts_and_bits_of_a_cold_one(
    family, drafter, depth, sampling
):
    cold, warm, again = cold_and_warm(family, drafter, depth=depth, sampling=sampling)
    assert has_same_bits(warm, cold)
    assert has_same_bits(again, cold)
    assert [turn.cached for turn in cold] == [0, 0]
    assert warm[1].cached >= 16  # the first prompt has at most 15 tokens


def attach_one_page_early(monkeypatch):
    """A page gets the state of the page after it."""
    original = PrefixCache._attach_snapshots

    def early(self, lease, tokens, covered):
        taken = lease.snapshots.taken
        for border in [each for each in taken if each > PAGE_SIZE]:
            taken[border - PAGE_SIZE] = taken.pop(border)
        original(self, lease, tokens, covered)

    monkeypatch.setattr(PrefixCache, "_attach_snapshots", early)


def restore_nothing(monkeypatch):
    monkeypatch.setattr(RowSnapshots, "restore", lambda self, row, slot: None)


def save_a_round_too_late(monkeypatch):
    """Every slot gets the state of the step after its own."""
    original, waiting = RowSnapshots.save, []

    def late(self, snapshots):
        original(self, waiting)
        waiting[:] = snapshots

    monkeypatch.setattr(RowSnapshots, "save", late)


TRACES = [case for case in CASES if case[1] != "head"]


def replayed(family, drafter, *, seed, num=16):
    """Answers of an engine with scarce pages and slots, those of one without a cache; the first."""
    target, drafts = row_model(family)
    rng, draft = random.Random(seed), drafts[drafter]
    how = {"depth": rng.choice([0, 1]), "executor": rng.choice(["eager", "tape"])}
    shape = shape_of(draft, chunk=rng.choice([7, 20, 33]), max_rows=2, max_context=96, **how)
    # Room for the longest text and little more, and for fewer snapshots than texts have borders.
    scarce = replace(shape, kv_tokens=128, row_snapshots=rng.choice([3, 5, 7]))
    cold = engine_of(target, replace(shape, prefix_cache=False), draft)
    warm = saving(engine_of(target, scarce, draft))
    found, right = [], []
    for asked, turn in random_texts(warm, rng, num=num):
        tokens, rounds, cached, logprobs = traces(cold, [asked])[asked.request_id]
        found.append(turn)
        right.append(Turn(tokens, rounds, cached, [each.chosen for each in logprobs]))
    return found, right, warm


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize(("family", "drafter"), TRACES)
def test_random_texts_are_answered_as_if_cold_and_nothing_leaks(family, drafter):
    """Pages and snapshots are evicted all the time."""
    seed = TRACES.index((family, drafter))
    found, right, engine = replayed(family, drafter, seed=seed)
    assert has_same_bits(found, right)
    cache = engine._scheduler.cache
    assert cache.stats.evicted_pages > 0
    assert sum(turn.cached > 0 for turn in found) > 1
    assert cache.slots.num_held == 0
    assert cache.num_available == cache.num_pages
    engine.flush()
    assert cache.slots.num_free == cache.slots.num
    assert cache.num_available == cache._allocator.num_free == cache.num_pages


def drop_nothing(monkeypatch):
    """A page that is evicted leaves its snapshot to the next text in that page."""
    monkeypatch.setattr(SnapshotSlots, "drop", lambda self, pages: None)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["v4", "qwen3-next"])
def test_a_snapshot_that_outlives_its_page_is_noticed(family, monkeypatch):
    drop_nothing(monkeypatch)
    found, right, _ = replayed(family, "none", seed=7, num=24)
    assert not is_same(found, right)


MUTANTS = [
    ("v4", attach_one_page_early),
    ("qwen3-next", attach_one_page_early),
    ("v4", save_a_round_too_late),
    ("qwen3-next", restore_nothing),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mutate"), MUTANTS)
def test_a_mistake_with_snapshots_is_noticed(family, mutate, monkeypatch):
    mutate(monkeypatch)
    cold, warm, again = cold_and_warm(family, "none")
    assert not is_same([*warm, *again], cold * 2)


@pytest.mark.parametrize("family", ["qwen3.5", "v4"])
@pytest.mark.fast_cases(1)
def test_preempted_requests_go_on_from_their_snapshots(family):
    target, drafts = row_model(family)
    draft = drafts["ngram"]
    roomy = shape_of(draft, chunk=24, max_rows=3, max_context=80, prefix_cache=False)
    # One request and a half: the last one is preempted again and again.
    scarce = replace(roomy, kv_tokens=144, prefix_cache=True)
    asked = [
        make_submission(f"r{i}", [5 + i, 6, 7] * 7, sampling_of("greedy"), max_tokens=40)
        for i in range(3)
    ]
    alone = run_all(engine_of(target, roomy, draft), asked)
    engine = saving(engine_of(target, scarce, draft))
    outputs = run_all(engine, asked)
    for name, own in outputs.items():
        assert own.tokens == alone[name].tokens
        assert own.logprobs == alone[name].logprobs  # to the last bit
    assert sum(own.last.progress.preemptions for own in outputs.values()) > 0
    assert engine.stats.prefix.hit_tokens > 0
    slots = engine._scheduler.cache.slots
    assert slots.num_held == 0
    engine.flush()
    assert slots.num_free == slots.num
