import itertools
import random
from dataclasses import dataclass

import pytest

from outrider.engine.prefix_cache.radix_tree import LONG_EDGE, Node, RadixTree
from outrider.engine.prefix_cache.token_key import TokenKey


def cache(tree: RadixTree, tokens: list[int], pages: list[int]) -> list[int]:
    """Inserts from the root, releases at once, and returns the duplicates."""
    insertion = tree.insert(tree.root, TokenKey.of(tokens), pages)
    tree.unlock(insertion.node)
    return insertion.duplicates


def matched(tree: RadixTree, tokens: list[int]) -> list[int]:
    return tree.match(TokenKey.of(tokens)).pages


def count_nodes(node: Node) -> int:
    return sum(1 + count_nodes(child) for child in node.children.values())


def test_match_returns_only_whole_pages() -> None:
    tree = RadixTree(2)
    cache(tree, [1, 2, 3, 4], [10, 11])
    assert matched(tree, [1, 2, 3, 4, 5]) == [10, 11]
    assert matched(tree, [1, 2, 3, 9]) == [10]
    assert matched(tree, [1, 9]) == []
    assert matched(tree, []) == []


def test_insert_returns_the_pages_that_were_present() -> None:
    tree = RadixTree(2)
    assert cache(tree, [1, 2, 3, 4], [10, 11]) == []
    assert cache(tree, [1, 2, 5, 6], [20, 21]) == [20]
    assert matched(tree, [1, 2, 3, 4]) == [10, 11]
    assert matched(tree, [1, 2, 5, 6]) == [10, 21]


def test_a_held_node_is_the_same_after_a_split() -> None:
    tree = RadixTree(1)
    held = tree.insert(tree.root, TokenKey.of([1, 2, 3]), [10, 11, 12]).node
    assert matched(tree, [1, 2, 9]) == [10, 11]  # splits the edge
    assert held.pages == [12]
    assert held.parent.pages == [10, 11]
    assert held.locks == held.parent.locks == 1
    assert tree.insert(held, TokenKey.of([4]), [13]).duplicates == []
    assert matched(tree, [1, 2, 3, 4]) == [10, 11, 12, 13]


def test_edge_grows_while_one_holder_appends_to_it() -> None:
    tree = RadixTree(1)
    node = tree.root
    for token in range(20):
        node = tree.insert(node, TokenKey.of([token]), [token + 1]).node
    assert count_nodes(tree.root) == 1
    assert matched(tree, list(range(20))) == list(range(1, 21))


def test_long_edge_gets_a_child_instead_of_growing() -> None:
    tree = RadixTree(1)
    long = tree.insert(tree.root, TokenKey.of([7] * LONG_EDGE), [1] * LONG_EDGE).node
    child = tree.insert(long, TokenKey.of([8]), [2]).node
    assert child.parent is long
    assert tree.insert(child, TokenKey.of([9]), [3]).node is child


def test_edge_with_two_holders_does_not_grow() -> None:
    tree = RadixTree(1)
    node = tree.insert(tree.root, TokenKey.of([1]), [10]).node
    tree.lock(node)
    end = tree.insert(node, TokenKey.of([2]), [11]).node
    assert (node.locks, end.locks) == (2, 1)  # the second holder does not use page 11
    tree.unlock(end)
    assert tree.num_evictable == 1


def test_eviction_takes_the_longest_unused_and_the_end_first() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2, 3], [10, 11, 12])
    cache(tree, [5, 6], [20, 21])
    assert tree.evict(2) == [11, 12]
    assert matched(tree, [1, 2, 3]) == [10]
    assert tree.evict(2) == [10, 21]


def test_use_makes_pages_young_again() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2], [10, 11])
    cache(tree, [5, 6], [20, 21])
    node = tree.match(TokenKey.of([1])).node
    tree.lock(node)
    tree.unlock(node)
    assert tree.evict(3) == [11, 20, 21]
    assert matched(tree, [1, 2]) == [10]


def test_locked_pages_are_not_evicted() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2, 3], [10, 11, 12])
    node = tree.match(TokenKey.of([1, 2])).node
    tree.lock(node)
    assert tree.num_evictable == 1
    assert tree.evict(1) == [12]
    with pytest.raises(AssertionError, match="num_evictable"):
        tree.evict(1)
    tree.unlock(node)
    assert sorted(tree.evict(2)) == [10, 11]
    assert count_nodes(tree.root) == 0


def test_unlocking_more_often_than_locking_is_refused() -> None:
    tree = RadixTree(1)
    cache(tree, [1], [10])
    with pytest.raises(AssertionError, match="more often"):
        tree.unlock(tree.match(TokenKey.of([1])).node)


def test_reusing_a_sequence_does_not_make_the_eviction_queue_longer() -> None:
    tree = RadixTree(1)
    for _ in range(50):
        cache(tree, [1, 2], [10, 11])
    assert len(tree._queue) == 1


@dataclass(frozen=True)
class WrittenOutKey:
    """What TokenKey with lookahead 1 avoids: every pair as an object of its own."""

    pairs: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, units: slice) -> "WrittenOutKey":
        return WrittenOutKey(self.pairs[units])

    def whole_pages(self, page_size: int) -> "WrittenOutKey":
        return self[: len(self) // page_size * page_size]

    def head(self, num_units: int) -> tuple[tuple[int, int], ...]:
        return tuple(self.pairs[:num_units])

    def num_common(self, other: "WrittenOutKey") -> int:
        equal = [a == b for a, b in zip(self.pairs, other.pairs, strict=False)]
        return [*equal, False].index(False)

    def followed_by(self, other: "WrittenOutKey") -> "WrittenOutKey":
        return WrittenOutKey(self.pairs + other.pairs)


class Twins:
    """One tree over pair views and one over written-out pairs; both must always answer alike."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.views = RadixTree(page_size)
        self.lists = RadixTree(page_size)
        self.next_page = 1

    def keys(self, tokens: list[int]) -> tuple[TokenKey, WrittenOutKey]:
        view = TokenKey.of(tokens).looking_ahead(1)
        return view, WrittenOutKey(list(itertools.pairwise(tokens)))

    def insert(self, tokens: list[int]) -> None:
        view, listed = (key.whole_pages(self.page_size) for key in self.keys(tokens))
        assert len(view) == len(listed)
        last = self.next_page + len(view) // self.page_size
        pages = list(range(self.next_page, last))
        self.next_page = last
        ours = self.views.insert(self.views.root, view, pages)
        theirs = self.lists.insert(self.lists.root, listed, pages)
        assert ours.duplicates == theirs.duplicates
        self.views.unlock(ours.node)
        self.lists.unlock(theirs.node)

    def match(self, tokens: list[int]) -> None:
        view, listed = self.keys(tokens)
        ours, theirs = self.views.match(view), self.lists.match(listed)
        assert ours.pages == theirs.pages
        assert ours.node.pages == theirs.node.pages

    def evict(self, num_pages: int) -> None:
        assert self.views.num_evictable == self.lists.num_evictable
        num_pages = min(num_pages, self.views.num_evictable)
        assert self.views.evict(num_pages) == self.lists.evict(num_pages)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_pair_views_answer_like_written_out_pairs(page_size: int, seed: int) -> None:
    rng = random.Random(seed)
    twins = Twins(page_size)
    seen: list[list[int]] = [[]]
    for _ in range(150):
        known = rng.choice(seen)
        kept = rng.randint(0, len(known))
        tokens = known[:kept] + rng.choices((0, 1), k=rng.randint(0, 3 * page_size))
        act = rng.choice((twins.insert, twins.match, twins.evict))
        act(rng.randint(0, 4) if act == twins.evict else tokens)
        seen.append(tokens)
