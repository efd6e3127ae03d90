"""Random lives of several requests, against a cache that keeps one dict entry per page."""

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.prefix_cache.radix_tree import Node
from outrider.engine.prefix_cache.snapshot_slots import SnapshotSlots
from outrider.errors import CapacityError

NUM_PAGES = 24
MAX_LEASES = 4

Prefix = tuple[tuple[int, ...], ...]  # the units of whole pages, from position 0 on


@dataclass
class ModelPage:
    page: int
    used_at: int
    users: int = 0


@dataclass
class Request:
    """A request with all the tokens it will ever have; the first `committed` are in KV."""

    lease: Lease
    tokens: list[int]
    committed: int
    shared: list[Prefix] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)  # slots of snapshots by border
    in_flight: list[int] = field(default_factory=list)  # slots whose border is not known yet


class Model:
    """The naive cache: prefix -> page. Slow, obvious, and shares no code with the tree.

    With slots, a prefix is found only if it has a snapshot; other pages stay cached behind it.
    """

    def __init__(self, *, page_size: int, lookahead: int, num_slots: int) -> None:
        self.has_slots = num_slots > 0
        self.free_slots = set(range(1, num_slots + 1))
        self.slot_of: OrderedDict[Prefix, int] = OrderedDict()  # the latest used last
        self.passed: set[Prefix] = set()  # those whose text goes on to a later snapshot
        self.page_size = page_size
        self.width = lookahead + 1
        self.cached: dict[Prefix, ModelPage] = {}
        self.clock = 0
        self.num_evicted = 0

    def prefixes(self, tokens: list[int]) -> list[Prefix]:
        num_units = max(0, len(tokens) - self.width + 1)
        units = tuple(tuple(tokens[i : i + self.width]) for i in range(num_units))
        ends = range(self.page_size, num_units + 1, self.page_size)
        return [units[:end] for end in ends]

    def match(self, tokens: list[int]) -> list[Prefix]:
        found = [prefix for prefix in self.prefixes(tokens) if prefix in self.cached]
        while self.has_slots and found and found[-1] not in self.slot_of:
            found.pop()
        return found

    def restore(self, prefix: Prefix) -> int:
        """The slot of a prefix that a request continues."""
        self.renew(prefix, is_passed=False)
        return self.slot_of[prefix]

    def renew(self, prefix: Prefix, *, is_passed: bool) -> None:
        self.slot_of.move_to_end(prefix)
        (self.passed.add if is_passed else self.passed.discard)(prefix)

    def slots_in_order(self) -> list[Prefix]:
        """The snapshots in the order in which they go."""
        return sorted(self.slot_of, key=lambda prefix: prefix not in self.passed)

    def take_slot(self, slot: int) -> None:
        """Note that a slot was taken: a free one, or that of the first prefix in the order."""
        if slot not in self.free_slots:
            assert not self.free_slots, "a free slot comes first"
            gone = self.slots_in_order()[0]
            self.passed.discard(gone)
            assert self.slot_of.pop(gone) == slot
        self.free_slots.discard(slot)

    def attach(self, request: Request, tokens: list[int]) -> None:
        """Snapshots of a request belong to the prefixes that are cached now."""
        prefixes = self.prefixes(tokens)
        for border in sorted(request.taken):
            num_pages = border // self.page_size
            if num_pages > len(prefixes) or prefixes[num_pages - 1] not in self.cached:
                continue
            prefix, slot = prefixes[num_pages - 1], request.taken.pop(border)
            if prefix in self.slot_of:
                self.free_slots.add(slot)
            else:
                self.slot_of[prefix] = slot
            self.renew(prefix, is_passed=False)
            for before in prefixes[: num_pages - 1]:
                if before in self.slot_of and not self.parts_after(before):
                    self.renew(before, is_passed=True)

    def parts_after(self, prefix: Prefix) -> bool:
        size = len(prefix) + self.page_size
        return sum(len(p) == size and p[: len(prefix)] == prefix for p in self.cached) > 1

    def give_back(self, request: Request) -> None:
        self.free_slots |= {*request.taken.values(), *request.in_flight}
        request.taken, request.in_flight = {}, []

    def _remove(self, prefix: Prefix) -> None:
        del self.cached[prefix]
        if prefix in self.slot_of:
            self.free_slots.add(self.slot_of.pop(prefix))
            self.passed.discard(prefix)

    def use(self, request: Request, prefixes: list[Prefix]) -> None:
        for prefix in prefixes:
            self.cached[prefix].users += 1
        request.shared += prefixes

    def publish(self, request: Request, tokens: list[int]) -> None:
        new = self.prefixes(tokens)[len(request.shared) :]
        if new and new[0] not in self.cached:
            self._add(request, new)
            self.use(request, new)
        self.attach(request, tokens)

    def close(self, request: Request, tokens: list[int]) -> None:
        new = self.prefixes(tokens)[len(request.shared) :]
        for prefix in request.shared:
            self.cached[prefix].users -= 1
        self._add(request, new)
        self.attach(request, tokens)
        self.give_back(request)
        self.clock += 1
        for prefix in request.shared + new:
            self.cached[prefix].used_at = self.clock

    def discard(self, request: Request) -> None:
        self.close(request, [])
        for prefix in reversed(request.shared[request.lease.cached // self.page_size :]):
            longer = any(len(p) > len(prefix) and p[: len(prefix)] == prefix for p in self.cached)
            if longer or self.cached[prefix].users:
                return
            self._remove(prefix)

    def evict(self, num_pages: int) -> None:
        for _ in range(num_pages):
            unused = [prefix for prefix, entry in self.cached.items() if not entry.users]
            self._remove(min(unused, key=lambda p: (self.cached[p].used_at, -len(p))))
        self.num_evicted += num_pages

    def flush(self) -> None:
        for prefix in [prefix for prefix, entry in self.cached.items() if not entry.users]:
            self._remove(prefix)

    @property
    def num_unused(self) -> int:
        return sum(not entry.users for entry in self.cached.values())

    def _add(self, request: Request, prefixes: list[Prefix]) -> None:
        for prefix in prefixes:
            page = request.lease.pages[len(prefix) // self.page_size - 1]
            self.cached.setdefault(prefix, ModelPage(page=page, used_at=self.clock))


class Trace:
    """Plays operations on the cache and on the model, and compares them after each."""

    def __init__(self, *, page_size: int, lookahead: int, num_slots: int = 0) -> None:
        self.page_size = page_size
        self.slots = SnapshotSlots(num_slots) if num_slots else None
        self.cache = PrefixCache(
            num_pages=NUM_PAGES + 1, page_size=page_size, lookahead=lookahead, slots=self.slots
        )
        self.model = Model(page_size=page_size, lookahead=lookahead, num_slots=num_slots)
        self.requests: list[Request] = []
        self.states: dict[int, list[int]] = {}  # the text that each slot has the state of
        self.num_restored = 0

    def open(self, blocks: list[int]) -> None:
        """Blocks are longer than half a page, so sequences part inside pages and between them."""
        size = self.page_size // 2 + 1
        tokens = [1000 * block + i for block in blocks for i in range(size)]
        expected = self.model.match(tokens)
        lease = self.cache.open(tokens)
        assert lease.cached == len(expected) * self.page_size
        assert lease.pages == [self.model.cached[prefix].page for prefix in expected]
        request = Request(lease=lease, tokens=tokens, committed=lease.cached)
        if self.slots and expected:
            slot = lease.snapshots.restored
            assert slot == self.model.restore(expected[-1])
            assert self.states[slot] == tokens[: lease.cached]
            self.num_restored += 1
        self.model.use(request, expected)
        self.requests.append(request)

    def save(self, request: Request, *, back: int) -> None:
        """A row is at the last border, or some pages before it: its state is copied."""
        border = (request.committed // self.page_size - back) * self.page_size
        if self.slots is None or border <= 0 or border in request.taken:
            return
        slot = self.slots.take()
        if slot:
            self.model.take_slot(slot)
            self.states[slot] = request.tokens[:border]
            request.taken[border] = request.lease.snapshots.taken[border] = slot

    def save_round(self, request: Request) -> None:
        """The state after a round whose length is not known yet."""
        if self.slots is None or 2 * self.slots.num_held >= self.slots.num:
            return
        slot = self.slots.take()
        self.model.take_slot(slot)
        self.states[slot] = []  # of no border until it is settled, so no request may get it
        request.in_flight.append(slot)
        request.lease.snapshots.in_flight.append(slot)

    def extend(self, request: Request, *, quarters: int, kept: int) -> None:
        """Reserves room for `quarters` of pages, of which the target keeps `kept` per cent."""
        num_query = quarters * self.page_size // 4 + 1
        before = list(request.lease.pages)
        needed = self.cache.pages_for(request.committed + num_query) - len(before)
        missing = max(0, needed - self.num_free)
        if missing > self.model.num_unused:
            with pytest.raises(CapacityError):
                self.cache.extend(request.lease, request.committed + num_query)
            assert request.lease.pages == before
            return
        self.model.evict(missing)
        granted = self.cache.extend(request.lease, request.committed + num_query)
        assert len(granted) == max(0, needed)
        assert request.lease.pages == [*before, *granted]
        emitted = num_query * kept // 100
        request.committed = min(len(request.tokens), request.committed + emitted)

    def publish(self, request: Request) -> None:
        before = list(request.lease.pages)
        tokens = request.tokens[: request.committed]
        self.cache.publish(request.lease, tokens)
        self.model.publish(request, tokens)
        assert request.lease.pages == before

    def close(self, request: Request, *, is_kept: bool) -> None:
        tokens = request.tokens[: request.committed] if is_kept else []
        self.cache.close(request.lease, tokens)
        self.model.close(request, tokens)
        self.requests.remove(request)

    def discard(self, request: Request) -> None:
        self.cache.discard(request.lease)
        self.model.discard(request)
        self.requests.remove(request)

    def flush(self) -> None:
        self.cache.flush()
        self.model.flush()

    @property
    def num_free(self) -> int:
        own = sum(len(request.lease.pages) - len(request.shared) for request in self.requests)
        return NUM_PAGES - len(self.model.cached) - own

    def check(self) -> None:
        own = [page for r in self.requests for page in r.lease.pages[len(r.shared) :]]
        free = self.cache._allocator._free
        cached = [page for node in nodes_below(self.cache._tree.root) for page in node.pages]
        assert sorted(own + free + cached) == list(range(1, NUM_PAGES + 1))
        assert self.cache.num_available == len(free) + self.model.num_unused
        assert self.cache.stats.evicted_pages == self.model.num_evicted
        expected = {prefix: entry.page for prefix, entry in self.model.cached.items()}
        assert self.cached_prefixes(self.cache._tree.root, ()) == expected
        self.check_locks()
        self.check_slots()
        if len(self.requests) == 1:  # one request alone can have every page
            assert self.cache.num_available + len(self.requests[0].lease.pages) == NUM_PAGES

    def check_slots(self) -> None:
        """Every slot is free, of a request, or of a cached page; those go in this order."""
        if self.slots is None:
            return
        of_pages = [
            (self.model.cached[prefix].page, self.model.slot_of[prefix])
            for prefix in self.model.slots_in_order()
        ]
        order = [*self.slots._order._passed, *self.slots._order._ends]
        assert [(page, self.slots._of_page[page]) for page in order] == of_pages
        assert len(self.slots._of_page) == len(of_pages)
        assert set(self.slots._free) == self.model.free_slots
        assert len(self.slots._free) == len(self.model.free_slots)
        held = [s for r in self.requests for s in (*r.taken.values(), *r.in_flight)]
        assert self.slots.num_held == len(held)
        assert sorted([*held, *self.slots._free, *(slot for _, slot in of_pages)]) == list(
            range(1, self.slots.num + 1)
        )

    def check_locks(self) -> None:
        users = {id(node): 0 for node in nodes_below(self.cache._tree.root)}
        for request in self.requests:
            pages: list[int] = []
            node = request.lease.node
            while node is not self.cache._tree.root:
                users[id(node)] += 1
                pages = node.pages + pages
                node = node.parent
            assert pages == request.lease.pages[: len(request.shared)]
        for node in nodes_below(self.cache._tree.root):
            assert node.locks == users[id(node)]

    def cached_prefixes(self, node: Node, before: Prefix) -> dict[Prefix, int]:
        """The content of the tree, written out page by page."""
        found: dict[Prefix, int] = {}
        for child in node.children.values():
            assert len(child.key) == len(child.pages) * self.page_size > 0
            raw = child.key.tokens[child.key.start : child.key.stop].tolist()
            width = self.model.width
            units = tuple(tuple(raw[i : i + width]) for i in range(len(child.key)))
            for index, page in enumerate(child.pages, start=1):
                found[before + units[: index * self.page_size]] = page
            found |= self.cached_prefixes(child, before + units)
        return found


def nodes_below(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


class Operation(NamedTuple):
    """What happens next. The three numbers mean what `play` makes of them."""

    kind: str
    which: int
    first: int
    second: int


KINDS = ("open",) * 4 + ("extend",) * 7 + ("publish",) * 5 + ("close",) * 3
KINDS += ("discard", "flush")
SAVES = ("save",) * 6 + ("save round",)
operations = st.builds(
    Operation,
    st.sampled_from(KINDS + SAVES),
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(0, 8),
)


def random_operation(rng: random.Random, kinds: tuple[str, ...] = KINDS) -> Operation:
    return Operation(rng.choice(kinds), rng.randint(0, 3), rng.randint(0, 8), rng.randint(0, 8))


def play(trace: Trace, operation: Operation) -> None:
    _, which, first, second = operation
    if operation.kind == "open" and len(trace.requests) < MAX_LEASES:
        trace.open([0] * first + [1 + which] * second)
    elif operation.kind == "flush":
        trace.flush()
    elif trace.requests:
        request = trace.requests[which % len(trace.requests)]
        if operation.kind == "extend":
            trace.extend(request, quarters=4 * first, kept=(100, 100, 50, 0)[second % 4])
        elif operation.kind == "publish":
            trace.publish(request)
        elif operation.kind == "save":
            trace.save(request, back=first // 2)
        elif operation.kind == "save round":
            trace.save_round(request)
        elif operation.kind == "close":
            trace.close(request, is_kept=second > 0)
        elif operation.kind == "discard":
            trace.discard(request)
    trace.check()


def end(trace: Trace) -> None:
    for request in list(trace.requests):
        trace.close(request, is_kept=True)
        trace.check()
    assert trace.cache.num_available == NUM_PAGES
    trace.flush()
    trace.check()
    assert trace.num_free == NUM_PAGES
    assert trace.slots is None or trace.slots.num_free == trace.slots.num


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("num_slots", [0, 1, 5])
@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@settings(max_examples=50, deadline=None)
@given(played=st.lists(operations, min_size=20, max_size=50))
def test_every_page_has_one_owner_and_open_finds_all_that_is_cached(
    page_size: int, lookahead: int, num_slots: int, played: list[Operation]
) -> None:
    trace = Trace(page_size=page_size, lookahead=lookahead, num_slots=num_slots)
    for operation in played:
        play(trace, operation)
    end(trace)


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(2))
def test_long_traces_keep_the_cache_equal_to_its_model(
    page_size: int, lookahead: int, seed: int
) -> None:
    rng = random.Random(seed)
    trace = Trace(page_size=page_size, lookahead=lookahead)
    for _ in range(1000):
        play(trace, random_operation(rng))
    end(trace)
    assert trace.cache.stats.evicted_pages > 0
    assert trace.cache.stats.hit_tokens > 0


def play_many(trace: Trace, rng: random.Random) -> None:
    for _ in range(1000):
        play(trace, random_operation(rng, KINDS + SAVES))


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("num_slots", [2, 4, 12])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(2))
def test_long_traces_with_snapshots_restore_the_state_of_the_right_text(
    page_size: int, num_slots: int, lookahead: int, seed: int
) -> None:
    """Snapshots are evicted with their pages, and replaced when there are no others."""
    rng = random.Random(seed)
    trace = Trace(page_size=page_size, lookahead=lookahead, num_slots=num_slots)
    play_many(trace, rng)
    end(trace)
    assert trace.cache.stats.evicted_pages > 0
    assert trace.num_restored > 0


def drop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is evicted leaves its snapshot."""
    monkeypatch.setattr(SnapshotSlots, "drop", lambda self, pages: None)


def keep_on_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends keeps the slots that no page got."""
    end_lease = PrefixCache._end

    def leaking(self: PrefixCache, lease: Lease) -> None:
        lease.snapshots.take_all()
        end_lease(self, lease)

    monkeypatch.setattr(PrefixCache, "_end", leaking)


def attach_one_page_late(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = PrefixCache._attach_snapshots

    def late(self: PrefixCache, lease: Lease, tokens: list[int], covered: int) -> None:
        taken = lease.snapshots.taken
        for border in sorted(taken, reverse=True):
            taken[border + self.page_size] = taken.pop(border)
        attach(self, lease, tokens, covered)

    monkeypatch.setattr(PrefixCache, "_attach_snapshots", late)


@pytest.mark.parametrize("mistake", [drop_nothing, keep_on_close, attach_one_page_late])
@pytest.mark.fast_cases(3)
def test_a_mistake_with_slots_is_noticed(monkeypatch, mistake) -> None:
    mistake(monkeypatch)
    rng, trace = random.Random(0), Trace(page_size=4, lookahead=0, num_slots=3)
    with pytest.raises(AssertionError):
        play_many(trace, rng)
