"""On a GPU, recorded or not, draft modules and their KV are what a recomputation on a CPU gives."""

import random
from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.module_oracle import ModuleOracle, TheirModules
from support.module_rounds import mistakes, run, seed_of
from support.modules import TABLES, with_modules
from support.tiny import VOCAB

from outrider.runtime.draft_kinds import ModelDraft, ModulesDraft
from outrider.step.buckets import Listed
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling

EXECUTORS = ["eager", "graph", "breakable"]
NUM = 3
PROMPTS = [
    [(11 * i + 5) % VOCAB for i in range(21)],
    [50],
    [(3 * i + 1) % VOCAB for i in range(7)],
    [4, 66, 12, 9, 33, 8, 8],
    [13, 2],
]
SAMPLINGS = [RowSampling(seed=seed_of(i), temperature=0.9 * (i % 2)) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    cache = {}

    def get(name, **how):
        key = (name, *sorted(how.items()))
        if key not in cache:
            folder = tmp_path_factory.mktemp("modules")
            how = {"num": NUM, "device": "cuda"} | how
            cache[key] = with_modules(folder, TABLES[name], **how)
        return cache[key]

    return get


def check(
    monkeypatch,
    target,
    shape,
    *,
    seed,
    before=(),
    rows=None,
    oracle=ModuleOracle,
    samplings=SAMPLINGS,
):
    rng = random.Random(seed)
    submissions = [
        make_submission(f"r{i}", prompt, sampling, max_tokens=16)
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True))
    ]
    counts = [rng.randint(0, NUM) for _ in range(37)]
    notes, verifier, outputs = run(
        monkeypatch, target, shape, submissions, num=NUM, counts=counts, before=before, rows=rows
    )
    texts = [[*prompt, *outputs[f"r{i}"].tokens] for i, prompt in enumerate(PROMPTS)]
    assert (verifier.total_accepted > 0).sum() >= NUM
    return mistakes(notes, oracle(target, num=NUM), texts, samplings), outputs


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", TABLES)
def test_drafts_and_kv_are_those_of_the_cpu(monkeypatch, made, name, executor, depth):
    shape = Shape(
        device="cuda",
        page_size=4,
        step_tokens=23,
        max_rows=5,
        executor=executor,
        depth=depth,
        pad=4,
    )
    assert not check(monkeypatch, made(name), shape, seed=depth)[0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_batch_above_the_largest_bucket_is_exact(monkeypatch, made, executor):
    shape = Shape(device="cuda", page_size=16, step_tokens=40, max_rows=5, executor=executor)
    assert not check(monkeypatch, made("mimo"), shape, seed=3, rows=Listed((1, 2)))[0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_that_the_prefix_cache_served_are_exact(monkeypatch, made, executor):
    shape = Shape(device="cuda", page_size=4, step_tokens=30, max_rows=5, executor=executor)
    other = [*PROMPTS[0][:11], 1, 2, 3, 4, 5]
    before = [make_submission("before", other, SAMPLINGS[0], max_tokens=4)]
    wrong, outputs = check(monkeypatch, made("mimo"), shape, seed=4, before=before)
    assert not wrong
    assert outputs["r0"].last.progress.cached == 8


def test_modules_of_experts_are_exact(monkeypatch, made):
    shape = Shape(device="cuda", page_size=4, step_tokens=40, max_rows=5, pad=4, executor="graph")
    assert not check(monkeypatch, made("deepseek", body="qwen3-moe"), shape, seed=5)[0]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("body", ["deepseek-v3", "glm4-moe"])
def test_modules_draft_what_those_of_transformers_draft(monkeypatch, made, body, executor):
    shape = Shape(device="cuda", page_size=4, step_tokens=30, max_rows=5, pad=4, executor=executor)
    greedy = [replace(sampling, temperature=0.0) for sampling in SAMPLINGS]
    target = made("deepseek", body=body)
    wrong, _ = check(monkeypatch, target, shape, seed=6, oracle=TheirModules, samplings=greedy)
    assert not wrong


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num", [1, 3])
def test_modules_that_know_the_target_are_always_right(tmp_path, num, executor):
    made = with_modules(
        tmp_path, TABLES["deepseek"], num=num, body="llama", is_bigram=True, device="cuda"
    )
    budget = Budget(steps=3, topk=1, nodes=4)
    chain = made.load()
    draft = (
        ModelDraft(model=chain, budget=budget)
        if num == 1
        else ModulesDraft(modules=chain, budget=budget)
    )
    submissions = [
        make_submission(f"r{i}", prompt, replace(SAMPLINGS[i], seed=i), max_tokens=13)
        for i, prompt in enumerate(PROMPTS)
    ]
    shape = Shape(device="cuda", step_tokens=23, max_rows=5, executor=executor, depth=1)
    plain = run_all(engine_of(made.target, shape), submissions)
    drafted = run_all(engine_of(made.target, shape, draft), submissions)
    for name, one in drafted.items():
        assert one.tokens == plain[name].tokens
        assert one.last.progress.num_accepted == one.last.progress.drafted > 0
