"""Where texts can be continued, with the real scheduler and a model on paper."""

import random

import pytest
from support.paper import PaperRunner, facts, submission

from outrider.engine.engine import Engine
from outrider.runtime.divide_pages import PageSizes, divide_pages
from outrider.wire.window_facts import most_window_pages

PAGE = 16


def engine_of(**sizes):
    usual = {"page_size": PAGE, "max_context": 2048, "step_tokens": 256, "num_pages": 2000}
    known = facts(**(usual | sizes))
    return Engine(PaperRunner(known, random.Random(1)), known)


def answer(engine, prompt, *, max_tokens):
    """The tokens of one request, and how many of its prompt were cached."""
    engine.add(submission("r", prompt, max_tokens=max_tokens))
    tokens = []
    while engine.has_work:
        for update in engine.step():
            tokens += update.tokens
            cached = update.progress.cached
    return tokens, cached


def usual_window_pages(window, *, num_pages, max_rows=4, step_tokens=256):
    """Window pages beside so many pages, if the user sets no number of them."""
    in_row, in_step = (
        most_window_pages(window, page_size=PAGE, step_tokens=tokens, reach=1, depth=0)
        for tokens in (0, step_tokens)
    )
    sizes = PageSizes(
        page_size=PAGE,
        page_bytes=1,
        window_page_bytes=1,
        most_pages=num_pages,
        most_in_windows=max_rows * in_row + step_tokens // PAGE,
        most_in_one=in_step,
    )
    counts = divide_pages(sizes, num_pages=num_pages, num_window_pages="auto", free_bytes=10**9)
    return counts.num_window_pages


def hit_rate(engine, *, seed, num_chats=5, turns=4):
    """Share of prompt tokens that was cached, over chats with one system prompt, turn by turn."""
    rng = random.Random(seed)

    def some(low, high):
        return [rng.randrange(50) for _ in range(rng.randint(low, high))]

    system = some(200, 200)
    chats = [[*system, *some(20, 80)] for _ in range(num_chats)]
    for _ in range(turns):
        for chat in chats:
            chat += answer(engine, chat, max_tokens=rng.randint(30, 150))[0]
            chat += some(10, 60)
    stats = engine.stats.prefix
    return stats.hit_tokens / stats.queried_tokens


def text(num, *, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(num)]


@pytest.mark.parametrize("num_prompt", [31, 32, 33, 40])
def test_a_prompt_that_comes_again_is_cached_up_to_its_last_border(num_prompt):
    engine = engine_of(num_snapshots=8, every=PAGE)
    assert answer(engine, text(num_prompt), max_tokens=1)[1] == 0
    assert answer(engine, text(num_prompt), max_tokens=1)[1] == (num_prompt - 1) // PAGE * PAGE


def test_the_third_text_with_the_same_beginning_continues_after_it():
    engine, common = engine_of(num_snapshots=8, every=32), text(50)
    cached = [answer(engine, common + text(40, seed=n), max_tokens=1)[1] for n in (1, 2, 3)]
    assert cached == [0, 0, 48]


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_next_turn_continues_after_the_answer(nodes, depth):
    engine, prompt = engine_of(num_snapshots=8, every=PAGE, nodes=nodes, depth=depth), text(20)
    said, _ = answer(engine, prompt, max_tokens=50)
    turn = [*prompt, *said, *text(9, seed=2)]
    # The last token of an answer has no KV; with drafts, one token more must be known.
    assert answer(engine, turn, max_tokens=1)[1] == (20 + 50 - 1 - (nodes > 1)) // PAGE * PAGE


def test_a_few_tokens_more_are_not_worth_a_step():
    engine = engine_of(num_snapshots=8, every=32)
    for num_prompt, num_cached in ((40, 0), (60, 32), (70, 32), (70, 64)):
        before = engine.stats.work.counts.steps
        assert answer(engine, text(num_prompt), max_tokens=1)[1] == num_cached
        assert engine.stats.work.counts.steps - before == (2 if num_prompt - num_cached > 32 else 1)


def test_an_evicted_snapshot_leaves_its_pages_and_no_hit():
    engine = engine_of(num_snapshots=1, every=32)
    first, second = text(40, seed=1), text(40, seed=2)
    for prompt in (first, second):
        answer(engine, prompt, max_tokens=1)
    assert answer(engine, second, max_tokens=1)[1] == 32
    assert answer(engine, first, max_tokens=1)[1] == 0


def test_a_snapshot_that_its_text_has_passed_is_evicted_before_others():
    engine = engine_of(num_snapshots=3, every=32)
    first, second = text(40, seed=1), text(40, seed=2)
    longer = first + text(35, seed=3)  # the next turn of a chat
    for prompt in (first, second, longer, text(40, seed=4)):
        answer(engine, prompt, max_tokens=1)
    assert answer(engine, second, max_tokens=1)[1] == 32
    assert answer(engine, longer, max_tokens=1)[1] == 64


def test_a_snapshot_where_texts_part_is_not_passed():
    engine, common = engine_of(num_snapshots=4, every=32), text(50)
    for n in (1, 2, 3):  # the second one leaves a snapshot after what they share
        answer(engine, common + text(40, seed=n), max_tokens=1)
    answer(engine, text(40, seed=4), max_tokens=1)  # takes the snapshot of the first one
    assert answer(engine, common + text(40, seed=7), max_tokens=1)[1] == 48


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "depth"), [(1, 0), (5, 1)])
@pytest.mark.parametrize(
    ("num_chats", "num_snapshots", "seed"), [(5, 16, 2), (5, 16, 3), (10, 16, 4), (20, 32, 5)]
)
def test_chats_hit_within_five_percent_of_a_model_without_row_state(
    num_chats, num_snapshots, seed, nodes, depth
):
    how, load = {"nodes": nodes, "depth": depth}, {"seed": seed, "num_chats": num_chats}
    plain = hit_rate(engine_of(**how), **load)
    ours = hit_rate(engine_of(**how, num_snapshots=num_snapshots, every=32), **load)
    assert ours > 0.95 * plain > 0.5, (ours, plain)


@pytest.mark.slow
@pytest.mark.parametrize(("window", "num_pages"), [(32, 30), (128, 104)])
def test_chats_of_a_model_with_windows_hit_as_often_as_without(window, num_pages):
    """Five ends of texts, and what one request can need besides, fit into the window pages."""
    plain = hit_rate(engine_of(), seed=3)
    ours = hit_rate(engine_of(window=window, window_pages=num_pages), seed=3)
    assert ours == plain > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("num_chats", "seed"), [(10, 4), (20, 3), (40, 4)])
def test_chats_hit_as_often_as_without_windows_by_the_usual_division(num_chats, seed):
    """The chats fill up to 80% of the pages, so every one of them could be cached."""
    load = {"seed": seed, "num_chats": num_chats, "turns": 3}
    plain = hit_rate(engine_of(), **load)
    num = usual_window_pages(128, num_pages=2000)
    ours = hit_rate(engine_of(window=128, window_pages=num), **load)
    assert ours > 0.95 * plain > 0.5, (ours, plain)
