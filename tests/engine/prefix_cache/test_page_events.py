"""A router that follows the events knows what the prefix cache would find."""

import random
from hashlib import blake2b

import pytest

from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.wire.adapter import Adapter, prefix_salt
from outrider.wire.cache_events import NO_PARENT, BlocksRemoved, BlocksStored, CacheCleared

PAGE = 4
SALTS = {"": "", "tenant": blake2b(b"tenant", digest_size=16).hexdigest()}  # as events have them


class RouterView:
    """The blocks that a router believes to be cached, by their hashes."""

    def __init__(self, cache):
        self.recorded = cache.record_events()
        self.blocks = {}  # hash -> (parent, tokens, salt of the first block)

    def update(self):
        events = self.recorded.take()
        for event in events:
            match event:
                case BlocksStored():
                    self._store(event)
                case BlocksRemoved():
                    for each in event.hashes:
                        del self.blocks[each]  # raises if it was never stored
                case CacheCleared():
                    self.blocks.clear()
        return events

    def _store(self, event):
        assert event.parent == NO_PARENT or event.parent in self.blocks
        assert len(event.tokens) == PAGE * len(event.hashes)
        parent, salt = event.parent, event.salt
        for place, each in enumerate(event.hashes):
            assert each not in self.blocks, "stored twice"
            self.blocks[each] = (parent, event.tokens[place * PAGE : (place + 1) * PAGE], salt)
            parent, salt = each, ""

    def count_cached(self, tokens, salt):
        """Tokens of the longest chain of blocks that holds them. The router knows no drafter."""
        found, parents = 0, {NO_PARENT}
        while found + PAGE <= len(tokens):
            wanted = (tuple(tokens[found : found + PAGE]), "" if found else salt)
            parents = {
                name
                for name, (parent, *rest) in self.blocks.items()
                if parent in parents and tuple(rest) == wanted
            }
            if not parents:
                break
            found += PAGE
        return found


def random_text(rng):
    return [rng.choice((1, 2)) for _ in range(rng.randrange(1, 40))]


@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_router_that_follows_the_events_predicts_the_hits(lookahead):
    rng = random.Random(f"seed {lookahead}")
    cache = PrefixCache(num_pages=24, page_size=PAGE, lookahead=lookahead)
    view, open_leases, num_removed = RouterView(cache), [], 0
    for _ in range(400):
        text, salt = random_text(rng), rng.choice(list(SALTS))
        ahead = cache.count_cached(text, salt=salt.encode())
        predicted = view.count_cached(text, SALTS[salt])
        # Draft KV of the last tokens is not known by this text: the router may hope for more.
        assert ahead <= predicted <= ahead + PAGE * (lookahead > 0) + lookahead
        if rng.random() < 0.5 and len(open_leases) < 2:
            lease = cache.open(text, salt=salt.encode())
            if cache.pages_for(len(text)) - len(lease.pages) > cache.num_available:
                cache.close(lease, ())
            else:
                cache.extend(lease, len(text))
                cache.publish(lease, text[: len(text) // 2])
                open_leases.append((lease, text))
        elif open_leases:
            lease, text = open_leases.pop(rng.randrange(len(open_leases)))
            cache.close(lease, text) if rng.random() < 0.8 else cache.discard(lease)
        if rng.random() < 0.02:
            cache.flush()
        num_removed += sum(isinstance(each, BlocksRemoved) for each in view.update())
    assert num_removed > 10  # the pool was small enough
    for lease, text in open_leases:
        cache.close(lease, text)
    cache.flush()
    assert view.update()[-1] == CacheCleared()
    assert view.blocks == {}


def events_of(text, salt=b"", *more):
    """What is told when texts are cached one after the other."""
    cache = PrefixCache(num_pages=20, page_size=PAGE)
    recorded = cache.record_events()
    for each in (text, *more):
        lease = cache.open(each, salt=salt)
        cache.extend(lease, len(each))
        cache.close(lease, each)
    cache.flush()
    cleared, *events = recorded.take()
    assert cleared == CacheCleared()
    return events


def test_blocks_have_the_name_of_their_adapter_and_no_path_or_salt():
    adapter = Adapter(path="/secret/place", version="77.88", name="sql")
    text = list(range(8))
    *stored, _ = events_of(text, prefix_salt(adapter, "tenant"), [*text, 9, 9, 9, 9])
    assert [each.adapter for each in stored] == ["sql", "sql"]
    told = repr(stored)
    assert not [secret for secret in ("secret", "tenant", "77.88") if secret in told]
    (plain, _) = events_of(text, b"tenant")
    assert (plain.adapter, plain.salt) == ("", SALTS["tenant"])


def test_pages_of_embeddings_and_pages_after_them_are_not_told():
    (stored, cleared) = events_of([1, 2, 3, 4, 5, -2, 6, 7, 8, 9, 10, 11])
    assert (stored.tokens, len(stored.hashes)) == ((1, 2, 3, 4), 1)
    assert cleared == CacheCleared()
    assert events_of([-2, 2, 3, 4]) == [CacheCleared()]


def test_hashes_name_the_text_and_its_salt_alone():
    def hashes(text, salt):
        cache = PrefixCache(num_pages=9, page_size=PAGE)
        recorded = cache.record_events()
        lease = cache.open(text, salt=salt)
        cache.extend(lease, len(text))
        cache.close(lease, text)
        first, stored = recorded.take()
        assert first == CacheCleared()  # what another process told is over
        return stored.hashes

    text = list(range(12))
    assert hashes(text, b"") == hashes(text, b"")
    assert hashes(text, b"")[:2] == hashes([*text[:8], 99, 99, 99, 99], b"")[:2]
    assert not set(hashes(text, b"")) & set(hashes(text, b"a"))
    assert not set(hashes(text, b"")) & set(hashes([99, *text[1:]], b""))
