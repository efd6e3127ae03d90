"""Random arrivals, lengths, priorities, aborts and evictions: whatever happens, texts are right."""

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper import PaperRunner, expected_output, facts, submission

from outrider.engine.engine import Engine
from outrider.engine.prefix_cache.radix_tree import Node

sizes = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 2, 4, 16, 64]),
        "nodes": st.integers(1, 4),
        "depth": st.integers(0, 1),
        "max_rows": st.integers(1, 5),
        "step_tokens": st.integers(21, 40),
        "max_context": st.integers(12, 40),
        "prefix_cache": st.booleans(),
        "is_paced": st.booleans(),
        "num_snapshots": st.sampled_from([0, 0, 1, 3, 20]),  # 0: a model without row state
    }
)
arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # arrives at this step
        st.lists(st.integers(0, 2), min_size=1, max_size=10),  # few tokens: prefixes are shared
        st.integers(1, 20),  # max_tokens
        st.integers(0, 2),  # priority
        st.integers(-20, 12),  # aborted so many steps after arrival; never if negative
        st.booleans(),  # stops at token 7
    ),
    min_size=1,
    max_size=12,
)


def nodes_below(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


def num_pages_of(sizes, scarcity) -> int:
    least = -(-(sizes["max_context"] + 2 * sizes["nodes"]) // sizes["page_size"])
    return least + int(scarcity * 4 * least)  # one request must fit


def play(known, arrivals, seed):
    """The prefix cache of an engine after all requests, whose answers were right."""
    engine = Engine(PaperRunner(known, random.Random(seed)), known)
    tokens, due_aborts, context = {}, {}, known.host.max_context
    pending = {
        f"r{i}": (at, submission(f"r{i}", prompt, max_tokens=n, priority=p, stop=[7] * s), abort)
        for i, (at, prompt, n, p, abort, s) in enumerate(arrivals)
    }
    everything = {name: request for name, (_, request, _) in pending.items()}
    aborted, finished, now = set(), set(), 0
    while pending or engine.has_work:
        for name, (at, request, abort) in list(pending.items()):
            if at <= now:
                engine.add(request)
                del pending[name]
                if abort >= 0:
                    due_aborts[name] = now + abort
        for name, at in due_aborts.items():
            if at == now and name not in finished:
                engine.abort(name)
                aborted.add(name)
        for update in engine.step():
            assert update.request_id not in aborted | finished
            tokens.setdefault(update.request_id, []).extend(update.tokens)
            if update.finish != "running":
                finished.add(update.request_id)
        now += 1
        assert now < 5000, "the engine does not come to an end"
    assert finished | aborted == set(everything)
    for name, request in everything.items():
        right = expected_output(request, context)
        got = tokens.get(name, [])
        assert got == (right if name in finished else right[: len(got)])
    cache = engine._scheduler.cache
    assert cache.num_available == cache.num_pages
    assert sorted(engine._scheduler._free_rows) == list(range(1, known.host.max_rows + 1))
    return cache


@settings(max_examples=250, deadline=None)
@given(sizes=sizes, arrivals=arrivals, scarcity=st.floats(0, 1), seed=st.integers(0, 999))
def test_every_request_ends_with_its_own_tokens_and_every_page_comes_back(
    sizes, arrivals, scarcity, seed
):
    known = facts(num_pages=num_pages_of(sizes, scarcity), **sizes)
    cache = play(known, arrivals, seed)
    slots = cache.slots
    if sizes["num_snapshots"]:
        assert slots.num_held == 0
        cached = {page for node in nodes_below(cache._tree.root) for page in node.pages}
        assert cached.issuperset(slots._of_page)
    cache.flush()
    assert cache.num_available == cache.num_pages
    assert not sizes["num_snapshots"] or slots.num_free == slots.num


windowed_sizes = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 2, 4]),
        "nodes": st.integers(1, 3),
        "depth": st.integers(0, 1),
        "max_rows": st.integers(1, 3),
        "step_tokens": st.integers(10, 14),
        "max_context": st.just(80),
        "prefix_cache": st.booleans(),
        "window": st.sampled_from([1, 3, 5, 8]),
        "is_chunk": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(sizes=windowed_sizes, arrivals=arrivals, scarcity=st.floats(0, 1), seed=st.integers(0, 999))
def test_no_query_misses_a_token_of_its_window_and_every_window_page_comes_back(
    sizes, arrivals, scarcity, seed
):
    num_pages = num_pages_of(sizes, scarcity)
    least = facts(num_pages=num_pages, **sizes).most_window_pages  # one request must fit
    known = facts(num_pages=num_pages, window_pages=least + int(scarcity * least), **sizes)
    longer = [(at, prompt * 4, *others) for at, prompt, *others in arrivals]
    cache = play(known, longer, seed)
    windows = cache.windows
    assert windows.num_available == windows.num_pages
    cache.flush()
    assert cache.num_available == cache.num_pages
    assert windows._allocator.num_free == windows.num_pages
