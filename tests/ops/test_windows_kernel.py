"""The kernels of draft modules' windows, interpreted, against the torch law."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from support.engines import Shape, ask
from support.module_oracle import ModuleOracle
from support.module_rounds import mistakes, run, seed_of
from support.modules import TABLES, with_modules
from support.window_cases import check_windows

from outrider.ops.tree import mtp_window_triton as kernels
from outrider.spec import mtp_drafter as module_drafter
from outrider.spec import mtp_window as windows
from outrider.wire.row_sampling import RowSampling


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("seed", range(16))
def test_windows_and_memories_are_those_of_the_law(seed):
    check_windows(seed, "cpu")


def use_kernels(monkeypatch):
    """Run them wherever a GPU would; how often they ran is counted in what is returned."""
    see, take, calls = windows.see, windows.take, []

    def seen(memory, plan, outcome, catch_up, num_modules):
        if plan.shape.chunk.rows:
            return see(memory, plan, outcome, catch_up, num_modules)
        calls.append("see")
        verify_result = outcome.verify_result  # a GPU's judge packs what torch leaves as views
        packed = replace(
            verify_result,
            path=verify_result.path.contiguous(),
            emitted=verify_result.emitted.contiguous(),
        )
        outcome = replace(outcome, verify_result=packed)
        return windows._see_on_gpu(memory, plan, outcome, catch_up, num_modules)

    def taken(tokens, module, found, catch_up, drafts):
        if catch_up.shape.chunk.rows:
            take(tokens, module, found, catch_up, drafts)
            return
        facts = found.windows.num_known, found.windows.first
        rows, queries = catch_up.decode.rows, catch_up.queries.tokens
        kernels.take(tokens, found.windows.tokens, facts, rows, drafts, queries, module)

    monkeypatch.setattr(module_drafter, "see", seen)
    monkeypatch.setattr(module_drafter, "take", taken)
    return calls


def test_drafts_and_kv_follow_from_the_text_alone_with_kernels_in_the_loop(monkeypatch, tmp_path):
    calls, rng = use_kernels(monkeypatch), random.Random(0)
    made = with_modules(tmp_path, TABLES["mimo"], num=3)
    prompts = [[5, 16, 27, 38, 49, 60, 4], [50], [13, 2, 9]]
    laws = [RowSampling(seed=seed_of(i), temperature=0.8) for i in range(len(prompts))]
    asked = [ask(f"r{i}", prompt, laws[i], max_tokens=12) for i, prompt in enumerate(prompts)]
    notes, _, heard = run(
        monkeypatch,
        made,
        Shape(page_size=4, step_tokens=20, max_rows=3, pad=2),
        asked,
        num=3,
        counts=[rng.randint(0, 3) for _ in range(37)],
    )
    texts = [[*prompt, *heard[f"r{i}"].tokens] for i, prompt in enumerate(prompts)]
    assert not mistakes(notes, ModuleOracle(made, num=3), texts, laws)
    assert len(calls) > 3
