"""Bad words: which tokens are banned after which outputs and drafts."""

import torch

from outrider.ops.sampling.bad_words import ban_words_, latest_tokens
from outrider.sampling.restriction_rows import new_word_tables, write_words_
from outrider.wire.row_sampling import MAX_BAD_WORD_TOKENS, Restrictions, RowSampling
from outrider.wire.scheduled_batch import RowAdmission

VOCAB = 12


def banned(words, output, path):
    tables = new_word_tables(3, torch.device("cpu"))
    sampling = RowSampling(seed=0, restrictions=Restrictions(bad_words=words))
    write_words_(tables, RowAdmission(row=1, sampling=sampling, prompt=(), output=output))
    logits = torch.zeros(2, VOCAB)
    ban_words_(logits, tables, torch.tensor([1, 2]), torch.tensor([path, path]))
    assert torch.isfinite(logits[1]).all()  # a row without words
    return logits[0].isinf().nonzero().flatten().tolist()


def test_a_word_of_one_token_is_banned_everywhere():
    assert banned(((3,), (0,)), (), [-1, -1]) == [0, 3]
    assert banned(((3,),), (3, 4), [5, 6]) == [3]


def test_the_last_token_of_a_word_is_banned_after_the_others():
    word = (4, 5, 6)
    assert banned((word,), (), [-1, -1]) == []
    assert banned((word,), (4, 5), [-1, -1]) == [6]
    assert banned((word,), (4,), [-1, 5]) == [6]  # a path has gaps where other nodes are
    assert banned((word,), (), [4, 5]) == [6]
    assert banned((word,), (4, 5), [7, -1]) == []
    assert banned((word,), (5,), [-1, -1]) == []  # the prompt does not count


def test_a_word_may_have_as_many_tokens_as_the_table_holds():
    word = tuple(place % 9 for place in range(MAX_BAD_WORD_TOKENS))
    assert banned((word,), (8, *word[:-2]), [word[-2], -1]) == [word[-1]]
    assert banned((word,), (8, *word[:-2]), [-1, -1]) == []


def test_the_latest_tokens_move_up():
    before = torch.tensor([[-1, 1, 2], [3, 4, 5]])
    more = torch.tensor([[-1, 6, -1, 7], [-1, -1, -1, -1]])
    assert latest_tokens(before, more).tolist() == [[2, 6, 7], [3, 4, 5]]
