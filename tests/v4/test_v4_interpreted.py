"""DeepSeek-V4 on its own kernels, interpreted: what runs on a GPU agrees with transformers too."""

import pytest
import torch
from support.v4 import expected_logits, harness_of, prompt

pytest.importorskip("triton")
from outrider.attention import sparse
from outrider.kernels import turning as kernels
from outrider.models.v4 import attention, blocks, streams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them compiled")


@pytest.fixture
def on_kernels(monkeypatch):
    """Every law with a kernel runs it."""

    def rotate(x, rotation, *, back=False):
        return kernels.turn(x, rotation.cos, rotation.sin, is_back=back)

    def norm_and_rotate(x, norm, rotation):
        return kernels.turn_normed(x, rotation.cos, rotation.sin, norm.weight, norm.eps)

    monkeypatch.setattr(blocks, "store_entries", sparse.store_on_gpu)
    monkeypatch.setattr(blocks, "choose_entries", sparse.choose_on_gpu)
    monkeypatch.setattr(blocks, "rotate_tail", rotate)
    monkeypatch.setattr(attention, "attend", sparse.attend_on_gpu)
    monkeypatch.setattr(attention, "rotate_tail", rotate)
    monkeypatch.setattr(attention, "norm_and_rotate", norm_and_rotate)
    monkeypatch.setattr(streams, "_is_fused", lambda _: True)


def test_chunks_chains_and_padding_on_the_kernels_have_the_logits_of_transformers(
    folder, theirs, on_kernels
):
    texts = {row: prompt(44, seed=row) for row in (1, 2, 3)}
    right = {row: expected_logits(theirs, text) for row, text in texts.items()}
    harness = harness_of(folder, pad=3, nodes=5)

    def assert_close(got, row, first, last):
        torch.testing.assert_close(got, right[row][first:last], rtol=0, atol=1e-4)

    logits = harness.run({}, {1: (0, texts[1][:29]), 2: (0, texts[2][:6])})
    assert_close(logits[:29], 1, 0, 29)
    assert_close(logits[29:35], 2, 0, 6)
    wrong = [0, 0, 0]  # taken back by the step after
    logits = harness.run(
        {1: (29, texts[1][29:31] + wrong), 2: (6, texts[2][6:11])}, {3: (0, texts[3][:9])}, nodes=5
    )
    assert_close(logits[:2], 1, 29, 31)
    assert_close(logits[5:10], 2, 6, 11)
    assert_close(logits[15:24], 3, 0, 9)
    logits = harness.run({1: (31, texts[1][31:36]), 2: (11, texts[2][11:16])}, {}, nodes=5)
    assert_close(logits[:5], 1, 31, 36)
    assert_close(logits[5:10], 2, 11, 16)
