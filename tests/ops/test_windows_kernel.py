"""The kernels of draft modules' windows, interpreted, against the torch reference."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from support.engines import Shape, make_submission
from support.module_oracle import ModuleOracle
from support.module_rounds import mistakes, run, seed_of
from support.modules import TABLES, with_modules
from support.window_cases import check_windows

from outrider.ops.tree import mtp_window
from outrider.ops.tree import mtp_window_triton as kernels
from outrider.spec import mtp_drafter
from outrider.wire.row_sampling import RowSampling


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(16))
def test_windows_and_stored_pairs_are_those_of_the_reference(seed):
    check_windows(seed, "cpu")


def use_kernels(monkeypatch):
    """Run the kernels wherever a GPU would; the list that is returned has one entry per run."""
    calls = []

    def opened(table, outcome, decode, chunk, **sizes):
        if chunk.rows.shape[0]:
            return mtp_window.open_windows_reference(table, outcome, decode, chunk, **sizes)
        calls.append("open")
        result = outcome.verify_result  # on a GPU these are contiguous; in torch they are views
        packed = replace(result, path=result.path.contiguous(), emitted=result.emitted.contiguous())
        outcome = replace(outcome, verify_result=packed)
        return kernels.open_windows_triton(table, outcome, decode, chunk, **sizes)

    def written(tokens, module, inputs, chunk, **written):
        write = kernels.write_drafts_triton
        if chunk.rows.shape[0]:
            write = mtp_window.write_drafts_reference
        write(tokens, module, inputs, chunk, **written)

    monkeypatch.setattr(mtp_drafter, "open_windows", opened)
    monkeypatch.setattr(mtp_drafter, "write_drafts", written)
    return calls


@pytest.mark.slow
def test_drafts_and_kv_follow_from_the_text_alone_with_kernels_in_the_loop(monkeypatch, tmp_path):
    calls, rng = use_kernels(monkeypatch), random.Random(0)
    made = with_modules(tmp_path, TABLES["mimo"], num=3)
    prompts = [[5, 16, 27, 38, 49, 60, 4], [50], [13, 2, 9]]
    samplings = [RowSampling(seed=seed_of(i), temperature=0.8) for i in range(len(prompts))]
    submissions = [
        make_submission(f"r{i}", prompt, samplings[i], max_tokens=12)
        for i, prompt in enumerate(prompts)
    ]
    notes, _, outputs = run(
        monkeypatch,
        made,
        Shape(page_size=4, step_tokens=20, max_rows=3, pad=2),
        submissions,
        num=3,
        counts=[rng.randint(0, 3) for _ in range(37)],
    )
    texts = [[*prompt, *outputs[f"r{i}"].tokens] for i, prompt in enumerate(prompts)]
    assert not mistakes(notes, ModuleOracle(made, num=3), texts, samplings)
    assert len(calls) > 3
