"""Layers that keep only their windows give the tokens and drafts of layers that keep all."""

from dataclasses import replace

import pytest
from support.engines import engine_of, make_submission, run_all
from support.matrix import sampling_of
from support.row_chats import has_same_bits, is_same
from support.windowed_chats import cold_and_warm_windows, tight_shape

from outrider.engine.prefix_cache.window_pages import WindowPages

# All layers have windows, or some; windows end inside of pages, or between them.
CASES = [
    ("mistral-window", "none", "chain", {}),
    ("mistral-window", "relative", "tree", {"depth": 1, "page_size": 1}),
    ("ministral", "ngram", "tree", {"depth": 1, "page_size": 1}),
    ("ministral", "ngram", "chain", {"attention": "per_layer"}),
    ("gemma3", "eagle3", "chain", {"depth": 1}),
    ("gpt-oss", "ngram", "tree", {"executor": "tape"}),
    ("llama4", "ngram", "tree", {"depth": 1, "page_size": 2}),  # chunks end inside of pages
    ("llama4", "eagle3", "chain", {"executor": "tape", "page_size": 1}),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("family", "drafter", "tree", "how"), CASES)
def test_a_cached_turn_has_the_tokens_and_drafts_of_a_cold_one(
    models_of, family, drafter, tree, how
):
    cold, warm, again = cold_and_warm_windows(models_of(family), drafter, tree, **how)
    assert has_same_bits(warm, cold)
    assert has_same_bits(again, cold)
    assert [turn.cached for turn in cold] == [0, 0]
    assert warm[1].cached >= 16  # the first prompt has at most 15 tokens


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("family", ["mistral-window", "ministral", "llama4"])
def test_requests_that_lose_their_window_pages_are_computed_again(models_of, family):
    models = models_of(family)
    draft = models.draft("none", "chain")
    tight = tight_shape(models, draft, page_size=4, depth=1)
    asked = [
        make_submission(f"r{i}", [5 + i, 6, 7] * num, sampling_of("greedy", i), max_tokens=30)
        for i, num in enumerate((4, 12, 20))
    ]
    roomy = replace(tight, window_tokens="auto", prefix_cache=False)
    alone = run_all(engine_of(models.target, roomy, draft), asked)
    # Enough to admit a third request, and not enough for the longest chunks of all.
    scarce = replace(tight, window_tokens=tight.window_tokens * 6 // 5)
    engine = engine_of(models.target, scarce, draft)
    outputs = run_all(engine, asked)
    assert sum(own.last.progress.preemptions for own in outputs.values()) > 0
    assert {name: own.tokens for name, own in outputs.items()} == {
        name: own.tokens for name, own in alone.items()
    }
    windows = engine._scheduler.cache.windows
    assert windows.num_available == windows.num_pages
    engine.flush()
    assert windows._allocator.num_free == windows.num_pages


def look_one_page_back(monkeypatch):
    """Windows begin a position late, which with pages of one token is a page."""
    first_seen = WindowPages._first_seen
    monkeypatch.setattr(WindowPages, "_first_seen", lambda self, at: first_seen(self, at + 1))


def continue_anywhere(monkeypatch):
    monkeypatch.setattr(WindowPages, "num_resumable", lambda self, pages: len(pages))
    monkeypatch.setattr(WindowPages, "open", open_what_is_there)


def open_what_is_there(self, pages, *, parting):
    """A window whose lost pages get new memory, with whatever that holds."""
    for page in pages:
        if page not in self._of_page:
            self._take_idle(1 - self._allocator.num_free)
            self._of_page[page] = self._allocator.allocate(1)[0]
            self._idle.add(page, is_end=False)
    return OPEN(self, pages, parting=parting)


OPEN = WindowPages.open


def forget_to_grant(monkeypatch):
    """The window of a cached prefix does not come into the window table."""
    monkeypatch.setattr(WindowPages, "ids", lambda self, window, pages: ())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "page_size"), [("ministral", 1), ("llama4", 2)])
@pytest.mark.parametrize("mutate", [look_one_page_back, continue_anywhere, forget_to_grant])
def test_a_mistake_with_windows_is_noticed(models_of, monkeypatch, family, page_size, mutate):
    mutate(monkeypatch)
    models = models_of(family)
    cold, warm, again = cold_and_warm_windows(models, "none", "chain", page_size=page_size)
    assert not is_same([*warm, *again], cold * 2)
