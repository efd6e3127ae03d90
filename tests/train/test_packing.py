"""Packed sequences: which rows are trained, and that no row crosses its document."""

import numpy as np
import pytest
import torch

from outrider.errors import ConfigError
from outrider.train.batches import BatchOrder, make_batch
from outrider.train.documents import Document
from outrider.train.packing import PADDING, pack_documents, padded, reached_rows, trained_rows
from outrider.train.training_device import RequestedDevice, choose_training_device


def document(name, *, prompt, answer, temperature=0.0, first=10):
    """Tokens count up from `first`, so that every position has another token."""
    tokens = tuple(range(first, first + prompt + answer))
    span = ((prompt, prompt + answer),)
    return Document(
        id=name, source="", tokens=tokens, answers=span, temperature=temperature, seed=0
    )


def test_the_first_token_of_an_answer_is_trained_and_nothing_before_it():
    packed = pack_documents([document("a", prompt=4, answer=3)], length=10, seed=0)
    depth0, depth1, depth2, depth3 = trained_rows(packed, depth=4)[:, 0]
    # Row t predicts t + 2. Answers are at 4, 5 and 6.
    assert np.flatnonzero(depth0).tolist() == [2, 3, 4]
    assert np.flatnonzero(depth1).tolist() == [2, 3]  # and then t + 3, if that is an answer too
    assert np.flatnonzero(depth2).tolist() == [2]
    assert not depth3.any()
    assert np.flatnonzero(reached_rows(packed)[0]).tolist() == [
        3,
        4,
        5,
    ]  # they read tokens 4, 5 and 6


def test_no_row_is_trained_across_the_end_of_its_document():
    packed = pack_documents(
        [document("a", prompt=1, answer=4), document("b", prompt=1, answer=4, first=40)],
        length=12,
        seed=0,
    )
    assert packed.documents[0].tolist() == [0] * 5 + [1] * 5 + [PADDING] * 2
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1]
    depth0, depth1 = trained_rows(packed, depth=2)[:, 0]
    assert np.flatnonzero(depth0).tolist() == [0, 1, 2, 5, 6, 7]
    assert np.flatnonzero(depth1).tolist() == [0, 1, 5, 6]


def test_a_row_is_not_trained_from_one_answer_into_the_next():
    turns = Document(
        id="a",
        source="",
        tokens=tuple(range(10)),
        answers=((2, 4), (6, 9)),
        temperature=0.0,
        seed=0,
    )
    packed = pack_documents([turns], length=10, seed=0)
    depth0, depth1, depth2 = trained_rows(packed, depth=3)[:, 0]
    assert np.flatnonzero(depth0).tolist() == [0, 1, 4, 5, 6]
    assert np.flatnonzero(depth1).tolist() == [0, 4, 5]
    assert np.flatnonzero(depth2).tolist() == [4]


def test_the_teacher_of_a_row_is_one_position_before_the_token_that_it_predicts():
    packed = pack_documents([document("a", prompt=2, answer=5)], length=8, seed=0)
    requested = RequestedDevice(device="cpu", attention="dense", is_compiled=False)
    anchors = make_batch(
        packed, depth=3, device=choose_training_device(requested, head_dim=8)
    ).anchors
    for depth, (rows, index) in enumerate(zip(anchors.rows, anchors.teacher_index, strict=True)):
        assert torch.equal(anchors.teacher_rows[index], rows + 1 + depth)


def test_every_epoch_has_each_sequence_once_in_a_new_order():
    documents = [document(str(i), prompt=2, answer=6, first=i * 20) for i in range(6)]
    order = BatchOrder(pack_documents(documents, length=8, seed=0), size=2, seed=1)
    assert order.per_epoch == 3
    epochs = [
        [int(token) for step in range(3) for token in order.at(3 * epoch + step).tokens[:, 0]]
        for epoch in range(2)
    ]
    assert [sorted(epoch) for epoch in epochs] == [[0, 20, 40, 60, 80, 100]] * 2
    assert epochs[0] != epochs[1]
    again = BatchOrder(pack_documents(documents, length=8, seed=0), size=2, seed=1)
    assert np.array_equal(again.at(4).tokens, order.at(4).tokens)


def test_sequences_whose_states_are_kept_share_no_batch_with_others():
    documents = [document(str(i), prompt=2, answer=6, first=i * 20) for i in range(9)]
    packed = pack_documents(documents, length=8, seed=0)
    order = BatchOrder(packed, size=2, seed=1, num_kept=4)
    assert order.per_epoch == 2 + 2  # one of the five others is left out
    for epoch in range(3):
        batches = [order.numbers_at(4 * epoch + step).tolist() for step in range(4)]
        assert sorted(max(batch) < 4 for batch in batches) == [False, False, True, True]
        assert all((min(batch) < 4) == (max(batch) < 4) for batch in batches)
        assert len({number for batch in batches for number in batch}) == 8


def test_padding_sequences_of_a_batch_are_never_trained():
    packed = padded(pack_documents([document("a", prompt=2, answer=3)], length=8, seed=0), 3)
    assert len(packed) == 3
    assert trained_rows(packed, depth=2).sum(axis=(0, 2)).tolist() == [5, 0, 0]


def test_documents_whose_answers_are_cut_off_are_refused():
    long_prompt = document("a", prompt=9, answer=4)
    with pytest.raises(ConfigError, match="within 10 tokens; raise --length"):
        pack_documents([long_prompt], length=10, seed=0)
