"""DeepSeek-V4 compiled: its kernels at real sizes, and the engine eager, captured and exact."""

import pytest
import torch
from support.engines import engine_of, make_submission, run_all
from support.reference import decode
from support.row_matrix import (
    CHAIN,
    LONGEST,
    MAX_TOKENS,
    PLAIN,
    PROMPTS,
    Case,
    mismatches,
    sampling_of,
    shape_of,
)
from support.v4 import saved_v4
from support.v4_module import save_with_module

from outrider.models.deepseek_v4.v4_module import load_v4_module
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget

pytest.importorskip("triton")
from support.v4_kernels import (
    BlockCase,
    ChoiceCase,
    SparseCase,
    check_attention,
    check_choice,
    check_chunk_bits,
    check_entries,
    check_partial_rope,
    check_streams,
)

CUDA = torch.device("cuda")
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = tmp_path_factory.mktemp("v4")
    saved_v4(folder)
    return folder


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder, dtype="float32", device=CUDA)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num", "heads", "width", "pairs"),
    [(1, 64, 512, 32), (33, 64, 512, 32), (700, 1, 512, 32), (9, 64, 128, 32), (3, 5, 12, 4)],
)
def test_vectors_are_normalised_and_turned_at_their_end(num, heads, width, pairs, dtype):
    check_partial_rope(num, heads, width, pairs, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        BlockCase(window=8, series=2, width=512, pairs=32, windows=19),
        BlockCase(window=8, series=2, width=128, pairs=32, windows=19),
        BlockCase(window=128, series=1, width=512, pairs=32, windows=15),
        BlockCase(window=16, series=1, width=20, pairs=2),
    ],
    ids=str,
)
def test_blocks_that_end_become_entries_and_the_others_write_nothing(case, dtype):
    check_entries(case, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        ChoiceCase(
            64, 128, per_page=32, columns=128, top_k=512, counts=(0, 3, 511, 512, 513, 4096)
        ),
        ChoiceCase(64, 128, per_page=64, columns=40, top_k=1024, counts=(2560, 1025, 7)),
        ChoiceCase(8, 12, per_page=4, columns=5, top_k=3, counts=(0, 1, 3, 4, 17, 20)),
    ],
    ids=str,
)
def test_the_entries_that_match_best_are_chosen(case, dtype):
    check_choice(case, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        SparseCase(
            64, 512, window=128, per_page=1, columns=512, counts=(512, 0, 300, 65), chains=2
        ),
        SparseCase(
            64, 512, window=128, per_page=2, columns=40, counts=(80, 1, 33, 0, 79), chains=5
        ),
        SparseCase(128, 512, window=128, per_page=1, columns=0, counts=(0,) * 70, chains=3),
        SparseCase(4, 16, window=8, per_page=4, columns=5, counts=(0, 3, 20, 7, 1), chains=3),
    ],
    ids=str,
)
def test_window_entries_and_sink_share_one_softmax(case, dtype):
    check_attention(case, ("cuda", dtype), roundings=2 if dtype == torch.float32 else 4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", [4, 64, 128])
def test_a_token_has_the_same_bits_in_a_chunk_and_in_a_chain(heads, dtype):
    width, counts = (512, (512, 0, 300, 65, 64)) if heads > 4 else (16, (5, 0, 200))
    case = SparseCase(
        heads, width, window=128, per_page=1, columns=512, counts=counts, chains=len(counts)
    )
    check_chunk_bits(case, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num", "streams", "hidden"), [(1, 4, 4096), (33, 4, 4096), (5, 4, 7168), (3, 2, 32)]
)
def test_streams_are_mixed_as_in_the_reference(num, streams, hidden, dtype):
    # Mixes are sums of up to 28,672 products, which a GPU adds in another order.
    roundings = 64 if dtype == torch.float32 else 12
    check_streams(num, streams, hidden, ("cuda", dtype), roundings=roundings)


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("draft", [PLAIN, CHAIN, LONGEST], ids=["plain", "chain", "longest"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled", "warped"])
def test_executors_drafts_and_padding_change_no_token(folder, target, sampling, draft, executor):
    for depth, pad, chunk in ((0, 1, 30), (1, 4, 7)):
        shape = shape_of(draft, chunk=chunk, device="cuda", executor=executor, depth=depth, pad=pad)
        assert not mismatches(saved_v4(folder), target, Case(sampling, draft, shape))


@pytest.mark.parametrize("executor", ["graph", "breakable"])
@pytest.mark.parametrize("draft", [PLAIN, CHAIN], ids=["plain", "chain"])
def test_a_steady_loop_never_waits_for_the_device(target, draft, executor):
    shape = shape_of(draft, chunk=66, device="cuda", executor=executor, depth=1, pad=4)
    engine = engine_of(target, shape, draft)
    for index, prompt in enumerate(PROMPTS):
        engine.add(make_submission(f"r{index}", prompt, sampling_of("greedy"), max_tokens=70))
    for _ in range(12):
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = [update for _ in range(6) for update in engine.step()]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum(len(update.tokens) for update in outputs) >= 6


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_drafts_of_the_module_change_no_token(tmp_path_factory, sampling, executor):
    folder = tmp_path_factory.mktemp("module")
    oracle = save_with_module(folder)
    target = load_target(folder, dtype="float32", device=CUDA)
    module = load_v4_module(folder, target, dtype="float32")
    draft = ModelDraft(model=module, budget=Budget(steps=3, topk=1, nodes=4))
    shape = shape_of(draft, chunk=7, device="cuda", executor=executor, depth=1, pad=4)
    submissions = [
        make_submission(f"r{i}", text, sampling_of(sampling), max_tokens=MAX_TOKENS)
        for i, text in enumerate(PROMPTS)
    ]
    outputs = run_all(engine_of(target, shape, draft), submissions)
    assert sum(one.last.progress.drafted for one in outputs.values()) > 0
    for i, text in enumerate(PROMPTS):
        right = decode(oracle.theirs, text, sampling_of(sampling), max_tokens=MAX_TOKENS)
        assert outputs[f"r{i}"].tokens == right.tokens


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("executor", ["eager", "breakable"])
def test_with_fixed_arithmetic_drafts_and_batch_change_no_bit(folder, sampling, executor):
    fixed = load_target(folder, dtype="bfloat16", device=CUDA, arithmetic="fixed")

    def answers(draft, prompts, **how):
        shape = shape_of(draft, chunk=30, device="cuda", arithmetic="fixed", **how)
        submissions = [
            make_submission(f"r{i}", PROMPTS[i], sampling_of(sampling), max_tokens=MAX_TOKENS)
            for i in prompts
        ]
        outputs = run_all(engine_of(fixed, shape, draft), submissions)
        return {name: (one.tokens, one.logprobs) for name, one in outputs.items()}

    alone = {}
    for index in range(len(PROMPTS)):
        alone |= answers(PLAIN, [index], max_rows=1)
    for draft in (PLAIN, CHAIN, LONGEST):
        all_prompts = range(len(PROMPTS))
        assert answers(draft, all_prompts, executor=executor, depth=1, pad=4) == alone
