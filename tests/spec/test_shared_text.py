"""Finished texts against a slow search over lists, and whose texts a row may read."""

import random

import pytest
import torch

from outrider.ops.tree.context_keys import LONGEST_MATCH
from outrider.ops.tree.find_occurrences import OCCURRENCES, NgramMatch
from outrider.ops.tree.suffix_paths import find_suffixes_reference
from outrider.ops.tree.suffix_paths_compiled import find_suffixes_compiled
from outrider.spec.shared_text import SharedText
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import NO_OWNER, FinishedText, RowAdmission

OWNER, OTHER = 11, 12
STEPS = 4
MATCH = NgramMatch(least=1, most=8)


def store(*texts, owner=OWNER, capacity=400) -> SharedText:
    shared = SharedText(rows=4, longest_path=STEPS, device=torch.device("cpu"), capacity=capacity)
    shared.append([FinishedText(owner=owner, tokens=tuple(text)) for text in texts])
    return shared


@pytest.fixture(name="read", params=[find_suffixes_reference, find_suffixes_compiled])
def matches_by_both_forms(request):
    """Reads the matches of a row whose text ends with `last`, longest first: (length, path)."""

    def read(shared: SharedText, last: list[int], *, owner=OWNER):
        sampling = RowSampling(seed=0)
        shared.admit([RowAdmission(row=1, sampling=sampling, prompt=(), output=(), owner=owner)])
        text = torch.tensor([[*last, -1]], dtype=torch.int32)  # a table has room for the next
        position = torch.tensor([len(last) - 1])
        readers = shared.readers(torch.tensor([1]))
        found = request.param(text, position, readers, shared.texts, MATCH, steps=STEPS)
        own = min(OCCURRENCES, text.shape[1])  # places in the row's own text come first
        columns = zip(found.matched[0, own:].tolist(), found.paths[0, own:].tolist(), strict=True)
        return [(matched, path) for matched, path in columns if matched]

    return read


def slow_matches(texts: list[list[int]], last: list[int]) -> list[tuple[int, list[int]]]:
    found = []
    for text in texts:
        for end in range(len(text)):
            num = 0
            while num < min(LONGEST_MATCH, len(last), end + 1) and (
                text[end - num] == last[-1 - num]
            ):
                num += 1
            path = text[end + 1 : end + 1 + STEPS]
            if num >= 3:
                found.append((num, path + [-1] * (STEPS - len(path))))
    return found


def test_what_followed_the_last_tokens_is_found(read):
    assert read(store([9, 1, 2, 3, 4, 5, 6, 7, 8]), [50, 1, 2, 3]) == [(3, [4, 5, 6, 7])]


def test_a_path_ends_with_its_text(read):
    assert read(store([1, 2, 3, 4], [5, 6, 7, 8]), [1, 2, 3]) == [(3, [4, -1, -1, -1])]


def test_a_match_does_not_reach_over_the_begin_of_a_text(read):
    shared = store([7, 7, 7], [1, 2, 3, 4])
    assert read(shared, [7, 7, 7, 1, 2, 3]) == [(3, [4, -1, -1, -1])]


def test_texts_of_another_owner_are_not_read(read):
    shared = store([1, 2, 3, 4])
    assert read(shared, [1, 2, 3], owner=OTHER) == []
    assert read(shared, [1, 2, 3], owner=NO_OWNER) == []


def test_texts_without_an_owner_are_never_read(read):
    assert read(store([1, 2, 3, 4], owner=NO_OWNER), [1, 2, 3], owner=NO_OWNER) == []


def test_owners_are_compared_and_not_their_hashes_alone(read):
    """A position whose key was copied from another owner, as a collision would do."""
    shared = store([1, 2, 3, 4], owner=OTHER)
    own = store([1, 2, 3, 4], owner=OWNER)
    shared._keys.copy_(own._keys)
    shared._order(slice(None))
    assert read(own, [1, 2, 3]) != []
    assert read(shared, [1, 2, 3]) == []


def test_new_texts_overwrite_the_oldest(read):
    shared = store(capacity=40)
    texts = [[10 * i + j for j in range(1, 9)] for i in range(1, 30)]
    shared.append([FinishedText(owner=OWNER, tokens=tuple(text)) for text in texts])
    assert read(shared, texts[-1][:4]) == [(4, texts[-1][4:])]
    assert read(shared, texts[0][:4]) == []
    assert sum(bool(read(shared, text[:4])) for text in texts) == 4  # 9 places each, of 40


def test_a_text_that_was_partly_overwritten_leads_to_no_other_text(read):
    others = [[30 + i] * 12 for i in range(3)]
    shared = store([1] * 3 + list(range(10, 19)), *others, capacity=52)  # full
    shared.append([FinishedText(owner=OTHER, tokens=(40, 41, 42, 43))])
    # The old text begins in the middle now; its rest can still be drafted from.
    assert read(shared, [13, 14, 15]) == [(3, [16, 17, 18, -1])]
    assert read(shared, [43, -1, 12, 13, 14]) == [(3, [15, 16, 17, 18])]  # not over an end


def test_a_long_text_is_stored_by_its_end(read):
    text = list(range(1, 60))
    shared = store(text, capacity=80)
    assert read(shared, text[:5]) == []
    assert read(shared, text[-8:-4]) == [(4, text[-4:])]


def test_after_a_failed_step_nothing_is_left(read):
    shared = store([1, 2, 3, 4])
    shared.forget()
    assert read(shared, [1, 2, 3]) == []


def test_matches_are_those_of_a_slow_search(read):
    for seed in range(60):
        rng = random.Random(seed)
        texts = [
            [rng.randrange(1, 4) for _ in range(rng.randrange(1, 30))]
            for _ in range(rng.randrange(1, 6))
        ]
        last = rng.choice(texts)[: rng.randrange(3, 20)]
        expected = slow_matches(texts, last)
        found = read(store(*texts), last)
        assert all(each in expected for each in found), seed
        lengths = sorted((num for num, _ in expected), reverse=True)[:1]
        assert [num for num, _ in found][:1] == lengths, seed
        if len(expected) <= 8:  # more are cut to the latest
            assert sorted(found) == sorted(expected), seed
