"""A grammar state can try tokens and undo them; a tree is masked as each of its paths alone."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matchers import MatcherStates
from support.tiny import VOCAB
from support.tiny_vocabulary import END, SPECS, TINY

from outrider.structured.grammar_matcher import WORD, bit_of
from outrider.structured.grammar_state import advance, mask_tree
from outrider.wire.grammar_spec import Grammar

pytest.importorskip("xgrammar")

RED = TINY.pieces.index(b"red")
WORDS = -(-VOCAB // WORD)


@pytest.fixture(scope="module")
def states():
    return MatcherStates()


def make(states, name):
    return states.make(Grammar(spec=SPECS[name], ends=(END,)))


def mask_of(state):
    bits = np.zeros((1, WORDS), dtype=np.int32)
    state.fill_mask(bits, 0)
    return bits[0].tolist()


def allowed(state):
    words = mask_of(state)
    return [token for token in range(VOCAB) if words[token // WORD] >> token % WORD & 1]


def wander(state, rng, most):
    """Commit some tokens that the grammar allows."""
    tokens = []
    for _ in range(rng.randrange(most)):
        tokens.append(rng.choice(allowed(state)))
        advance(state, tokens[-1:])
    return tokens


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(list(SPECS)), seed=st.integers(0, 2**32))
def test_tokens_that_were_tried_and_undone_leave_no_trace(states, name, seed):
    rng = random.Random(seed)
    state, twin = make(states, name), make(states, name)
    advance(twin, wander(state, rng, 12))
    for _ in range(4):
        state.begin()
        tried = []
        for _ in range(rng.randrange(8)):
            token = rng.choice([*allowed(state), rng.randrange(VOCAB)])
            if state.try_token(token):
                tried.append(token)
        num_accepted = rng.randrange(len(tried) + 1) if rng.random() < 0.5 else 0
        state.commit(num_accepted)
        advance(twin, tried[:num_accepted])
        assert mask_of(state) == mask_of(twin)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(list(SPECS)), seed=st.integers(0, 2**32))
def test_every_node_is_masked_as_if_its_path_had_been_emitted(states, name, seed):
    rng = random.Random(seed)
    state = make(states, name)
    committed = wander(state, rng, 8)
    nodes, tokens, parents, paths = 12, [7], [-1], [[]]
    before = mask_of(state)
    for node in range(1, nodes):
        parent = rng.randrange(node)
        plain = make(states, name)
        advance(plain, [token for token in committed + paths[parent] if token >= 0])
        # Mostly what the grammar allows, now and then something else or an absent node.
        tokens.append(rng.choice([*allowed(plain)[:6], rng.randrange(VOCAB), -1]))
        parents.append(parent)
        paths.append([*paths[parent], tokens[node]])
    bits = np.full((nodes + 3, WORDS), -1, dtype=np.int32)
    mask_tree(state, tokens, parents, bits, first=2)
    assert mask_of(state) == before
    assert np.all(bits[[0, 1, nodes + 2]] == -1)  # rows of others
    for node, path in enumerate(paths):
        plain = make(states, name)
        advance(plain, committed)
        plain.begin()
        is_possible = all(token >= 0 and plain.try_token(token) for token in path)
        expected = mask_of(plain) if is_possible else [-1] * WORDS
        assert bits[2 + node].tolist() == expected, (node, path)


def test_the_end_may_only_be_repeated(states):
    state = make(states, "choice")
    advance(state, [RED, END])
    assert allowed(state) == [END]
    state.begin()
    assert state.try_token(END)
    assert not state.try_token(RED)
    assert state.try_token(END)
    state.abort()
    assert allowed(state) == [END]


def test_the_last_token_of_a_word_has_the_sign_bit():
    word = np.zeros(1, dtype=np.int32)
    word[0] |= bit_of(31)
    assert word.item() == -(2**31)
    assert bit_of(32) == 1
