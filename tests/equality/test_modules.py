"""Draft modules, one per depth: after any acceptance, drafts and KV follow from the text alone.

A mistake here changes no token, only how many drafts are kept, so nothing else would notice it.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import module_rounds
from support.engines import UNLIMITED, Shape, engine_of, make_submission, run_all
from support.module_oracle import ModuleOracle, TheirModules
from support.module_rounds import ScriptedVerifier, mistakes, run, seed_of
from support.modules import TABLES, with_modules
from support.tiny import VOCAB

from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.models.mtp.module_chain import ModuleChain
from outrider.ops.tree import mtp_window
from outrider.ops.tree.mtp_pairs import PairTable
from outrider.runtime.draft_kinds import ModelDraft, ModulesDraft
from outrider.spec import mtp_drafter
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.model_drafter import ModelDrafter
from outrider.spec.mtp_drafter import ModuleDrafter
from outrider.step.buckets import Listed
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling

GREEDY = RowSampling(seed=0, temperature=0.0)
SAMPLED = RowSampling(seed=5, temperature=0.9)
PROMPT = [(11 * i + 5) % VOCAB for i in range(21)]
NUM = 3


def random_counts(seed, num=NUM):
    rng = random.Random(seed)
    return [rng.randint(0, num) for _ in range(37)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target of every table, made when it is asked for."""
    cache = {}

    def get(name, **how):
        key = (name, *sorted(how.items()))
        if key not in cache:
            folder = tmp_path_factory.mktemp("modules")
            cache[key] = with_modules(folder, TABLES[name], **{"num": NUM} | how)
        return cache[key]

    return get


def check(
    monkeypatch,
    made,
    shape,
    prompts,
    *,
    num=NUM,
    seed=0,
    samplings=None,
    budgets=None,
    oracle=ModuleOracle,
    **how,
):
    """Run prompts to the end of 16 tokens each; what is wrong, and how much was kept."""
    samplings, budgets = samplings or [GREEDY] * len(prompts), budgets or [UNLIMITED] * len(prompts)
    submissions = [
        make_submission(
            f"r{i}", prompt, replace(sampling, seed=seed_of(i)), max_tokens=16, budget=budget
        )
        for i, (prompt, sampling, budget) in enumerate(
            zip(prompts, samplings, budgets, strict=True)
        )
    ]
    notes, verifier, outputs = run(
        monkeypatch,
        made,
        shape,
        submissions,
        num=num,
        counts=random_counts(seed, num),
        **how,
    )
    texts = [[*prompt, *outputs[f"r{i}"].tokens] for i, prompt in enumerate(prompts)]
    samplings = [each.sampling for each in submissions]
    wrong = mistakes(notes, oracle(made, num=num), texts, samplings)
    return wrong, notes, verifier, outputs


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("name", TABLES)
def test_drafts_and_kv_follow_from_the_text_alone(monkeypatch, made, name, executor):
    shape = Shape(page_size=4, step_tokens=64, max_rows=1, executor=executor)
    wrong, notes, verifier, _ = check(monkeypatch, made(name), shape, [PROMPT])
    assert not wrong
    assert len(notes) > 4
    assert (verifier.total_accepted[: NUM + 1] > 0).sum() > 2  # several lengths of acceptance


SAMPLINGS = [GREEDY, SAMPLED, GREEDY, SAMPLED, SAMPLED]
PROMPTS = [PROMPT, [50], PROMPT[:7], [4, 66, 12, 9, 33, 8, 8], [13, 2]]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step_tokens", [21, 23, 64])  # five windows of four, and what is left
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_many_rows_in_small_chunks_follow_from_their_texts_alone(
    monkeypatch, made, executor, page_size, step_tokens, depth
):
    shape = Shape(
        page_size=page_size,
        step_tokens=step_tokens,
        max_rows=5,
        executor=executor,
        depth=depth,
        pad=4,
    )
    wrong, *_ = check(
        monkeypatch, made("mimo"), shape, PROMPTS, samplings=SAMPLINGS, seed=step_tokens
    )
    assert not wrong


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num", [2, 3, 5])
def test_any_number_of_modules_is_exact_after_any_acceptance(monkeypatch, made, num, seed):
    target = made("deepseek", num=5)
    shape = Shape(page_size=4, step_tokens=40, max_rows=3, executor="tape")
    wrong, _, verifier, _ = check(
        monkeypatch, target, shape, PROMPTS, num=num, seed=seed, samplings=SAMPLINGS
    )
    assert not wrong
    assert (verifier.total_accepted > 0).sum() >= num


def test_a_batch_above_the_largest_bucket_is_exact(monkeypatch, made):
    shape = Shape(page_size=4, step_tokens=40, max_rows=5, executor="tape")
    wrong, *_ = check(
        monkeypatch, made("mimo"), shape, PROMPTS, samplings=SAMPLINGS, rows=Listed((1, 2))
    )
    assert not wrong


def test_modules_of_experts_are_exact(monkeypatch, made):
    target = made("deepseek", body="qwen3-moe")
    shape = Shape(page_size=4, step_tokens=40, max_rows=3, pad=4)
    wrong, *_ = check(monkeypatch, target, shape, PROMPTS[:3])
    assert not wrong


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize(
    "body", ["deepseek-v3", "deepseek-v3-yarn", "glm4-moe", "glm4-moe-air", "glm4-moe-dense"]
)
def test_modules_draft_what_those_of_transformers_draft(monkeypatch, made, body, num, seed):
    """Latents, partly rotated heads, experts and all: a module's block is made as the target's."""
    target = made("deepseek", num=4, body=body)
    shape = Shape(page_size=4, step_tokens=30, max_rows=4, executor="tape", pad=4)
    wrong, notes, verifier, _ = check(
        monkeypatch, target, shape, PROMPTS, num=num, seed=seed, oracle=TheirModules
    )
    assert not wrong
    assert (verifier.total_accepted > 0).sum() >= num
    assert sum(one.is_decoding for one in notes) > 10


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("parting", [5, 6, 7, 8])  # tokens after three pages that both share
@pytest.mark.parametrize("name", ["mimo", "unchained"])
def test_rows_that_the_prefix_cache_served_are_exact(monkeypatch, made, name, parting, executor):
    """Another text ran before, which parts from this one somewhere after the shared pages."""
    other = [*PROMPT[: 4 * 2 + parting - 5], 1, 2, 3, 4, 5, 6]
    shape = Shape(page_size=4, step_tokens=30, max_rows=1, executor=executor)
    before = [make_submission("before", other, GREEDY, max_tokens=6)]
    wrong, _, _, outputs = check(monkeypatch, made(name), shape, [PROMPT], before=before)
    assert not wrong
    cached = outputs["r0"].last.progress.cached
    assert cached == (8 if parting == 8 else 4)  # a page needs the three tokens after it


@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_requests_that_gave_way_and_came_back_are_exact(monkeypatch, made, executor):
    shape = Shape(page_size=4, step_tokens=30, max_rows=5, executor=executor, kv_tokens=88)
    wrong, _, _, outputs = check(monkeypatch, made("mimo"), shape, PROMPTS, samplings=SAMPLINGS)
    assert not wrong
    assert sum(one.last.progress.preemptions for one in outputs.values()) > 0


def test_steps_that_were_run_for_practice_leave_nothing_behind(monkeypatch, made):
    """Their rows are row 0, which has no past and gets none."""
    built = module_rounds.engine_of

    def practised(*args, **how):
        engine = built(*args, **how)
        tree = Budget(steps=NUM, topk=1, nodes=NUM + 1)
        for tokens in (0, 9):
            chunk = ChunkShape(rows=2 if tokens else 0, tokens=tokens, width=tokens)
            engine._runner.dummy_run(
                StepShape(
                    rows=3,
                    tree=tree,
                    chunk=chunk,
                    pages=4,
                    sampling_flags=SamplingFlags(noise=True),
                )
            )
        return engine

    monkeypatch.setattr(module_rounds, "engine_of", practised)
    shape = Shape(page_size=4, step_tokens=30, max_rows=5, executor="tape")
    wrong, *_ = check(monkeypatch, made("mimo"), shape, PROMPTS, samplings=SAMPLINGS)
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_rows_that_draft_less_than_there_are_modules_stay_exact(monkeypatch, made, steps):
    """A short draft leaves fewer rejected rows, so the window is as wide as the modules ask."""
    shape = Shape(page_size=4, step_tokens=40, max_rows=3, executor="tape")
    limited = [Budget(steps=steps, topk=1, nodes=steps + 1), UNLIMITED, Budget()]
    wrong, *_ = check(
        monkeypatch, made("mimo"), shape, PROMPTS[:3], samplings=SAMPLINGS[:3], budgets=limited
    )
    assert not wrong
    alone = [limited[0]] * 3
    wrong, *_ = check(
        monkeypatch, made("mimo"), shape, PROMPTS[:3], samplings=SAMPLINGS[:3], budgets=alone
    )
    assert not wrong


def forget_what_may_be_stale(monkeypatch):
    """Stale rows are not run again: windows begin with what the step itself brought."""
    write = PairTable.write
    monkeypatch.setattr(
        PairTable,
        "write",
        lambda self, rows, pairs, num_new: write(self, rows, pairs, torch.zeros_like(num_new)),
    )


def mend_decoding_rows_only(monkeypatch):
    """A chunk does not run again what the chunk before it guessed about its tokens."""
    original = mtp_window.open_windows

    def blind(table, outcome, decode, chunk, **sizes):
        table.num.index_fill_(0, chunk.rows, 0)
        return original(table, outcome, decode, chunk, **sizes)

    monkeypatch.setattr(mtp_drafter, "open_windows", blind)


def write_all_modules_to_the_same_slots(monkeypatch):
    """The draft slots are not cut into one set for each module."""
    run_module = ModuleChain.forward_module

    def uncut(self, index, plan, state, kv, attention):
        first = SimpleNamespace(layers=kv.layers[:1] * len(self), layout=kv.layout)
        return run_module(self, index, plan, state, first, attention)

    monkeypatch.setattr(ModuleChain, "forward_module", uncut)


def let_idle_nodes_write_where_they_lie(monkeypatch):
    """A window's places without a pair are not sent to page 0, and overwrite what is there."""
    fill_windows = ModuleDrafter._fill

    def unmasked(self, catch_up, inputs, table):
        fill_windows(self, catch_up, replace(inputs, is_idle=inputs.is_idle & False), table)

    monkeypatch.setattr(ModuleDrafter, "_fill", unmasked)


def run_the_same_tokens_in_every_module(monkeypatch):
    """The window is not shifted from module to module."""
    original = mtp_window.write_drafts

    def stuck(tokens, module, inputs, chunk, *, rows, drafts, queries):
        before = queries.clone()
        original(tokens, module, inputs, chunk, rows=rows, drafts=drafts, queries=queries)
        queries.copy_(before)

    monkeypatch.setattr(mtp_drafter, "write_drafts", stuck)


def store_pairs_in_the_order_of_the_tree(monkeypatch):
    """The pairs of rejected nodes are stored as if they had been accepted."""
    newest = mtp_window.newest_of_decodes

    def all_of_them(pairs, num_accepted, room):
        most = pairs.tokens.shape[1] - room - 1
        return newest(pairs, torch.full_like(num_accepted, most), room)

    monkeypatch.setattr(mtp_window, "newest_of_decodes", all_of_them)


def share_pages_by_pairs_of_tokens(monkeypatch):
    """Draft KV is found again by the next token alone, though it depends on as many as modules."""
    init = PrefixCache.__init__
    monkeypatch.setattr(
        PrefixCache,
        "__init__",
        lambda self, **how: init(self, **how | {"lookahead": min(how["lookahead"], 1)}),
    )


MUTATIONS = [
    forget_what_may_be_stale,
    mend_decoding_rows_only,
    write_all_modules_to_the_same_slots,
    run_the_same_tokens_in_every_module,
    store_pairs_in_the_order_of_the_tree,
    share_pages_by_pairs_of_tokens,
]


def answer_all_prompts(monkeypatch, made, executor):
    """Short chunks, decoding rows beside them, and a prefix that another text left behind."""
    shape = Shape(page_size=4, step_tokens=21, max_rows=5, executor=executor)
    before = [make_submission("before", [*PROMPT[:9], 1, 2, 3, 4, 5], GREEDY, max_tokens=4)]
    return check(monkeypatch, made("mimo"), shape, PROMPTS, samplings=SAMPLINGS, before=before)[0]


def test_the_unharmed_drafter_passes_where_mutants_are_caught(monkeypatch, made):
    assert not answer_all_prompts(monkeypatch, made, "tape")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_recomputation_betrays(monkeypatch, made, mutate):
    mutate(monkeypatch)
    assert answer_all_prompts(monkeypatch, made, "tape")


@pytest.mark.parametrize("is_harmed", [False, True])
def test_no_two_query_tokens_of_a_catch_up_write_to_one_slot(monkeypatch, made, is_harmed):
    """On a CPU the last one would win, which happens to be the right one; a GPU has no order."""
    if is_harmed:
        let_idle_nodes_write_where_they_lie(monkeypatch)
    fill_windows, clashes = ModuleDrafter._fill, []

    def noted(self, catch_up, inputs, table):
        fill_windows(self, catch_up, inputs, table)
        slots = catch_up.queries.slots
        real = slots[slots >= self._kv.layout.page_size]
        clashes.append(real.numel() - real.unique().numel())

    monkeypatch.setattr(ModuleDrafter, "_fill", noted)
    answer_all_prompts(monkeypatch, made, "eager")
    assert clashes
    assert bool(sum(clashes)) == is_harmed


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num", [1, 3])
def test_modules_that_know_the_target_are_always_right(tmp_path, num, sampling):
    """Target and modules are functions of the last token alone, so every draft is accepted."""
    made = with_modules(tmp_path, TABLES["deepseek"], num=num, body="llama", is_bigram=True)
    chain, budget = made.load(), Budget(steps=3, topk=1, nodes=4)
    is_one = num == 1
    draft = (ModelDraft if is_one else ModulesDraft)(
        **{"model" if is_one else "modules": chain}, budget=budget
    )
    submissions = [
        make_submission(f"r{i}", prompt, replace(sampling, seed=i), max_tokens=13)
        for i, prompt in enumerate(PROMPTS)
    ]
    shape = Shape(step_tokens=23, max_rows=5, executor="tape", depth=1)
    plain = run_all(engine_of(made.target, shape), submissions)
    drafted = run_all(engine_of(made.target, shape, draft), submissions)
    for name, one in drafted.items():
        assert one.tokens == plain[name].tokens
        assert one.last.progress.num_accepted == one.last.progress.drafted > 0


def wrong_repeats(monkeypatch, target, seed, steps=5):
    """Rounds of the loop that runs every draft model which a recomputation contradicts."""
    verifier = ScriptedVerifier(random_counts(seed, steps))
    budget = Budget(steps=steps, topk=1, nodes=steps + 1)
    draft = ModelDraft(model=target.load(most=1), budget=budget)
    shape = Shape(page_size=4, step_tokens=7, max_rows=1)
    engine = engine_of(target.target, shape, draft, verifier=verifier)
    proposals = note_proposals(monkeypatch)
    outputs = run_all(engine, [make_submission("r", PROMPT, GREEDY, max_tokens=24)])["r"]
    text, oracle = [*PROMPT, *outputs.tokens], ModuleOracle(target, num=1)
    assert len(proposals) > 3
    right = [oracle.repeat(text[: length + 1], steps) for length, _ in proposals]
    return [drafts for (_, drafts), each in zip(proposals, right, strict=True) if drafts != each]


def note_proposals(monkeypatch):
    """Length and drafts of the first row of every round."""
    propose, proposals = ModelDrafter.propose, []

    def noted(self, plan, table):
        tree = propose(self, plan, table)
        if plan.shape.rows:
            proposals.append((int(plan.decode.lengths[0]), tree.tokens[0, 1:].tolist()))
        return tree

    monkeypatch.setattr(ModelDrafter, "propose", noted)
    return proposals


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TABLES)
def test_one_module_repeated_drafts_what_follows_from_the_text_alone(monkeypatch, made, name, seed):
    assert not wrong_repeats(monkeypatch, made(name), seed)


def test_a_recomputation_betrays_one_module_with_uncut_draft_slots(monkeypatch, made):
    monkeypatch.setattr(DraftSlots, "first_node", lambda self, step: 0)
    assert any(wrong_repeats(monkeypatch, made(name), seed=0) for name in TABLES)
