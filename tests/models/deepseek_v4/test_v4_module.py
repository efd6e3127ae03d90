"""The draft module inside DeepSeek-V4: exact at every row, after any drafts, and in the engine."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import engine_of, make_submission, run_all
from support.reference import decode
from support.row_matrix import MAX_TOKENS, PROMPTS, sampling_of, shape_of
from support.steps import NO_FLAGS, batch_of
from support.v4 import CPU, PAGE_SIZE, planner_of, prompt
from support.v4_module import save_with_module

from outrider import LLM
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.deepseek_v4.v4_module import count_v4_modules, load_v4_module
from outrider.models.deepseek_v4.v4_tensors import hub_name
from outrider.models.target import load_target
from outrider.ops.sparse import ring_plan
from outrider.ops.tree.chain import chain
from outrider.runtime.draft_kinds import ModelDraft
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.wire.draft_budget import Budget

ROW, NODES = 2, 5


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    return folder, save_with_module(folder)


@pytest.fixture(scope="module")
def oracle(saved):
    return saved[1]


@pytest.fixture(scope="module")
def target(saved):
    return load_target(saved[0], dtype="float32", device=CPU)


@pytest.fixture(scope="module")
def module(saved, target):
    return load_v4_module(saved[0], target, dtype="float32")


class Runner:
    """The module on ring buffers and a planner of its own."""

    def __init__(self, module):
        layout = module.facts.layout(page_size=PAGE_SIZE, dtype=torch.float32, nodes=NODES)
        self.module = module
        self.attention = layout.attention()
        self.planner, self.table, num_pages = planner_of(self.attention, nodes=NODES)
        self.pool = CompressedPool(layout, table_rows=5, num_pages=num_pages, device=CPU)

    def run(self, start, tokens, state, *, is_chunk=False, first_node=0):
        """States after the tokens at positions from `start` on, run on these states."""
        self.table.lengths[ROW] = start - first_node
        decodes, chunks = ({}, {ROW: (start, tokens)}) if is_chunk else ({ROW: start}, {})
        batch = batch_of(decodes, chunks, nodes=1 if is_chunk else len(tokens))
        plan = self.planner.plan(batch, sampling_flags=NO_FLAGS)
        resolve_lengths(plan, self.table)
        rows = plan.shape.rows  # one, or none beside a chunk
        drafted = torch.tensor(tokens if rows else [], dtype=torch.int64)
        tree = chain(drafted.view(rows, plan.shape.nodes))
        tree = replace(tree, depths=tree.depths + first_node)
        fill(
            plan,
            tree,
            table=self.table,
            attention=self.attention,
            page_size=PAGE_SIZE,
            first_node=first_node,
        )
        with torch.inference_mode():
            return self.module.forward(plan, state.flatten(1), self.pool, self.attention)


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_module_in_chunks_has_the_logits_of_its_definition(oracle, module):
    text = prompt(41)
    tokens, streams = text[1:], oracle.streams(text[:-1])
    right, runner, found, start = oracle.run(tokens, streams), Runner(module), [], 0
    for size in (1, 17, 3, 19):
        piece = slice(start, start + size)
        found.append(runner.run(start, tokens[piece], streams[piece], is_chunk=True))
        start += size
    ours = torch.cat(found)
    assert_close(ours.view_as(right), right)
    with torch.inference_mode():
        assert_close(module.logits(ours), oracle.logits(right))


def test_drafted_steps_read_each_other_and_leave_no_trace(oracle, module):
    """Three steps of a draft on the module's own streams, then true rows over the same places."""
    text, cut = prompt(40), 22
    tokens, streams = text[1:], oracle.streams(text[:-1])
    right, runner = oracle.run(tokens, streams), Runner(module)
    state = runner.run(0, tokens[:cut], streams[:cut], is_chunk=True)[-1:]
    drafted, seen = [7, 3, 60], streams[:cut]
    for step, token in enumerate(drafted):
        seen = torch.cat([seen, state.view(1, *seen.shape[1:])])
        state = runner.run(cut + step, [token], state, first_node=step)
        theirs = oracle.run(tokens[:cut] + drafted[: step + 1], seen)
        assert_close(state.view_as(theirs[-1:]), theirs[-1:])
    for start in (cut, cut + NODES, cut + 2 * NODES):
        piece = slice(start, start + NODES)
        ours = runner.run(start, tokens[piece], streams[piece])
        assert_close(ours.view_as(right[piece]), right[piece])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "steps", "executor"),
    [
        ("greedy", 1, "eager"),
        ("greedy", 3, "tape"),
        ("sampled", 3, "eager"),
        ("sampled", 2, "tape"),
    ],
)
def test_drafts_of_the_module_change_no_token(oracle, target, module, sampling, steps, executor):
    draft = ModelDraft(model=module, budget=Budget(steps=steps, topk=1, nodes=steps + 1))
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
    submissions = [
        make_submission(f"r{i}", text, sampling_of(sampling), max_tokens=MAX_TOKENS)
        for i, text in enumerate(PROMPTS)
    ]
    outputs = run_all(engine_of(target, shape, draft), submissions)
    for i, text in enumerate(PROMPTS):
        right = decode(oracle.theirs, text, sampling_of(sampling), max_tokens=MAX_TOKENS)
        assert outputs[f"r{i}"].tokens == right.tokens
    assert sum(entry.last.progress.drafted for entry in outputs.values()) > 0


def wrong_proposals(oracle, target, module):
    """Drafts of a greedy answer that are not what the definition says, recomputed from scratch."""
    text, steps = prompt(30, seed=3), 3
    draft = ModelDraft(model=module, budget=Budget(steps=steps, topk=1, nodes=steps + 1))
    engine = engine_of(target, shape_of(draft, chunk=64), draft)
    drafter, trees = engine._runner._program.drafter._drafter, []
    propose = drafter.propose

    def remembering(plan, table):
        tree = propose(plan, table)
        trees.extend(tree.tokens.tolist())
        return tree

    drafter.propose = remembering
    sampling = replace(sampling_of("greedy"), bias=())
    said, place = (
        text + run_all(engine, [make_submission("r", text, sampling, max_tokens=12)])["r"].tokens,
        30,
    )
    wrong = []
    assert len(trees) >= 6
    for root, *drafted in trees[:6]:
        place = said.index(root, place)
        tokens, streams = said[1 : place + 1], oracle.streams(said[:place])
        for step, token in enumerate(drafted):
            states = oracle.run(tokens, streams)
            if token != int(oracle.logits(states)[-1].argmax()):
                wrong.append(f"step {step} after position {place}: {token}")
            tokens, streams = [*tokens, token], torch.cat([streams, states[-1:]])
        place += 1
    return wrong


def test_drafts_are_what_the_definition_says(oracle, target, module):
    assert not wrong_proposals(oracle, target, module)


def test_steps_that_all_write_to_the_targets_of_the_first_give_away(
    oracle, target, module, monkeypatch
):
    """The targets of a round are not cut into steps: later drafts cover earlier ones."""
    original = ring_plan.fill_owners

    def uncut(plan, step):
        return original(plan, replace(step, first_node=0))

    monkeypatch.setattr(ring_plan, "fill_owners", uncut)
    assert wrong_proposals(oracle, target, module)


def without_modules(tensors):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def with_small_map(tensors):
    return tensors | {"mtp.0.e_proj.weight": torch.zeros(3, 3)}


def with_narrow_head(tensors):
    return tensors | {"mtp.0.head.weight": torch.zeros(3, 32)}


BROKEN = [
    (with_narrow_head, "mis-shaped tensors (1): mtp.0.head.weight [3, 32] instead of [67, 32]"),
    (without_modules, "holds no draft module (no tensor begins with mtp.0.)"),
    (with_small_map, "mis-shaped tensors (1): mtp.0.e_proj.weight [3, 3] instead of [32, 32]"),
]


@pytest.fixture
def changed(saved, tmp_path):
    """Makes a copy of the folder with other tensors."""

    def change(tensors_of):
        folder = shutil.copytree(saved[0], tmp_path / "copy")
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors_of(tensors), folder / "model.safetensors")
        return folder

    return change


def test_a_module_is_counted(saved, target):
    assert count_v4_modules(saved[0], target.config) == 1


def test_a_module_under_the_names_of_the_hub_is_the_same(changed, target):
    """There the target's own norm.weight is the end of mtp.0.norm.weight."""
    folder = changed(lambda tensors: {hub_name(name): each for name, each in tensors.items()})
    assert "norm.weight" in load_file(folder / "model.safetensors")
    assert count_v4_modules(folder, target.config) == 1
    load_v4_module(folder, target, dtype="float32")


def with_rolled_tables(tensors):
    """Token t of the module is token t - 1 of the target, in the embedding and in the head."""
    return tensors | {
        "mtp.0.emb.tok_emb.weight": tensors["model.embed_tokens.weight"].roll(1, 0),
        "mtp.0.head.weight": tensors["head.weight"].roll(1, 0),
    }


def test_an_embedding_and_a_head_of_its_own_are_used(changed, target, oracle, module):
    own = load_v4_module(changed(with_rolled_tables), target, dtype="float32")
    text = prompt(9)
    tokens, streams = text[1:], oracle.streams(text[:-1])
    rolled = [(token + 1) % target.config.vocab_size for token in tokens]
    right = Runner(module).run(0, tokens, streams, is_chunk=True)
    ours = Runner(own).run(0, rolled, streams, is_chunk=True)
    assert torch.equal(ours, right)
    with torch.inference_mode():
        assert_close(own.logits(ours), module.logits(right).roll(1, 1))


@pytest.mark.parametrize(("tensors_of", "fault"), BROKEN)
def test_modules_that_do_not_fit_are_refused_in_the_same_words_by_all(
    changed, target, capsys, tensors_of, fault
):
    folder = changed(tensors_of)
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load_v4_module(folder, target, dtype="float32")
    with pytest.raises(ConfigError, match=re.escape(fault)):
        LLM(folder, draft="mtp", adaptive=False, device="cpu", max_model_len=64, max_num_seqs=2)
    assert run(["doctor", "mtp", "--model", str(folder), "--no-probe"]) == 1
    shown = capsys.readouterr().out
    assert "problem: " in shown
    assert fault in shown
    assert "the modules fit" not in shown


def test_the_doctor_reports_a_damaged_file(saved, tmp_path, capsys):
    folder = shutil.copytree(saved[0], tmp_path / "copy")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert run(["doctor", "mtp", "--model", str(folder), "--no-probe"]) == 1
    assert f"problem: {path} is missing or damaged" in capsys.readouterr().out
