"""DSpark inside DeepSeek-V4: exact after any acceptance, strict about files, found by default."""

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.block_rounds import BlockRounds
from support.engines import Shape, engine_of
from support.forced_rounds import SomeStepsDraft
from support.poison import PoisoningExecutor
from support.role_traces import traces
from support.row_chats import saving
from support.row_harness import CPU, PAGE_SIZE
from support.row_matrix import PROMPTS, Case, ask_all, mismatches, run_case, shape_of
from support.v4 import prompt
from support.v4_dspark import LAST, SIZE, save_with_dspark

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import MOST_ROW_NODES, DraftConfig, resolve_budget
from outrider.errors import ConfigError
from outrider.frontend.find_drafter import find_drafter
from outrider.hub.download_progress import SilentReporter
from outrider.hub.own_drafter import holds_drafter
from outrider.models.deepseek_v4 import dspark_cache
from outrider.models.deepseek_v4.dspark_cache import DSparkLayout
from outrider.models.deepseek_v4.v4_attention import V4Attention
from outrider.models.deepseek_v4.v4_dspark import V4DSpark
from outrider.models.dflash.markov_head import MarkovHead
from outrider.models.target import load_target
from outrider.models.target_folder import read_folder
from outrider.runtime.draft_kinds import BlockDraft
from outrider.runtime.load_draft import fit_draft
from outrider.wire.draft_budget import Budget

ASKED = ask_all("greedy", PROMPTS)
ONE_ROW = Shape(page_size=PAGE_SIZE, step_tokens=64, max_rows=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dspark")
    return folder, save_with_dspark(folder)


def load(folder, target):
    return read_folder(folder).load_modules(target, most=SIZE, dtype="float32", arithmetic="fast")


@pytest.fixture(scope="module")
def rounds(saved):
    folder, oracle = saved
    target = load_target(folder, dtype="float32", device=CPU)
    return BlockRounds(target=target, head=load(folder, target), oracle=oracle, steps=SIZE)


@pytest.fixture
def draft(rounds):
    budget = Budget(steps=SIZE, topk=1, nodes=SIZE + 1)
    return BlockDraft(model=rounds.head, budget=budget)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("is_hit", [False, True], ids=["cold", "hit"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step_tokens", [7, 64])
def test_proposals_follow_from_the_text_alone(rounds, monkeypatch, step_tokens, depth, is_hit):
    shape = replace(ONE_ROW, step_tokens=step_tokens, depth=depth)
    wrong = rounds.mistakes(
        monkeypatch,
        shape,
        seed=depth,
        is_hit=is_hit,
        make_engine=lambda *parts: saving(engine_of(*parts)),
    )
    assert not wrong


@pytest.mark.slow
def test_proposals_after_steps_without_drafts_follow_from_the_text_alone(rounds, monkeypatch):
    assert not rounds.mistakes(monkeypatch, ONE_ROW, policy=SomeStepsDraft(3))


def make_the_ring_one_token_short(monkeypatch):
    """A block reads one token more than a query token of the target does."""
    length = DSparkLayout.ring_length
    monkeypatch.setattr(DSparkLayout, "ring_length", lambda self, window: length(self, window) - 1)


def keep_the_vectors_of_slots(monkeypatch):
    """The catch-up writes nothing while rows decode."""
    write = V4Attention.write_window

    def chunks_only(self, x, store, step):
        if step.index.num_decode_query < x.shape[0]:
            write(self, x, store, step)

    monkeypatch.setattr(V4Attention, "write_window", chunks_only)


def slide_the_window_over_the_block(monkeypatch):
    """Slots read a window that ends with themselves, as tokens of the target do."""
    monkeypatch.setattr(dspark_cache, "_is_block", lambda shape: False)


def take_the_markov_bias_of_the_token_after(monkeypatch):
    bias = MarkovHead.bias
    monkeypatch.setattr(MarkovHead, "bias", lambda self, *read: bias(self, *read).roll(1, dims=-1))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "mutate",
    [
        make_the_ring_one_token_short,
        keep_the_vectors_of_slots,
        slide_the_window_over_the_block,
        take_the_markov_bias_of_the_token_after,
    ],
)
def test_proposals_betray(rounds, monkeypatch, mutate):
    mutate(monkeypatch)
    assert rounds.mistakes(monkeypatch, ONE_ROW)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "executor"), [("greedy", "tape"), ("sampled", "eager")])
def test_drafts_change_no_token(rounds, draft, sampling, executor):
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
    case = Case(sampling, draft, shape)
    assert not mismatches(rounds.oracle.theirs, rounds.target, case)


@pytest.mark.slow
def test_a_preempted_request_goes_on_with_the_same_tokens(rounds, draft):
    case = Case("sampled", draft, shape_of(draft, chunk=30, kv_tokens=96))
    outputs = run_case(rounds.target, case)
    assert sum(entry.last.progress.preemptions for entry in outputs.values()) > 0
    assert not mismatches(rounds.oracle.theirs, rounds.target, case)


@pytest.mark.slow
def test_unused_memory_never_reaches_a_draft(rounds, draft):
    shape = shape_of(draft, chunk=7, pad=3, max_rows=2)
    asked = [replace(each, sampling=replace(each.sampling, trace=True)) for each in ASKED]
    right = traces(engine_of(rounds.target, shape, draft), asked)
    poisoned = engine_of(rounds.target, shape, draft)
    executor = PoisoningExecutor(poisoned, math.nan)
    got = traces(poisoned, asked)
    assert executor.num_filled
    assert {name: each[:2] for name, each in got.items()} == {
        name: each[:2] for name, each in right.items()
    }


def test_the_confidence_reads_the_state_before_the_norm(rounds):
    own, head = rounds.oracle.own, rounds.head
    states, tokens = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), [4, 5, 6]
    read = torch.cat([states, own[LAST + "markov_head.markov_w1.weight"][tokens]], dim=1)
    right = (read @ own[LAST + "confidence_head.proj.weight"][0]).sigmoid().log()
    torch.testing.assert_close(head.confidence(states, torch.tensor(tokens)), right)


@pytest.fixture
def changed(saved, tmp_path):
    """Makes a copy of the folder with other tensors and fields."""

    def change(tensors_of=lambda tensors: tensors, **fields):
        folder = shutil.copytree(saved[0], tmp_path / "copy")
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors_of(tensors), folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return change


def without(name):
    return lambda tensors: {each: value for each, value in tensors.items() if each != name}


def test_a_folder_without_a_confidence_head_loads(changed, rounds):
    folder = changed(without(LAST + "confidence_head.proj.weight"))
    model = load(folder, rounds.target)
    assert isinstance(model, V4DSpark)
    assert model.confidence(torch.zeros(1, 32), torch.zeros(1, dtype=torch.int64)) is None


TENSORS = {
    "missing": (without("mtp.0.main_norm.weight"), "lacks tensors (1): mtp.0.main_norm.weight"),
    "dropped": (
        lambda tensors: {name: each for name, each in tensors.items() if "mtp." not in name},
        "the folder holds none (no tensor begins with mtp.0.)",
    ),
    "unexpected": (
        lambda tensors: tensors | {"mtp.0.enorm.weight": torch.zeros(32)},
        "unexpected tensors (1): mtp.0.enorm.weight",
    ),
    "a stage more": (
        lambda tensors: tensors | {"mtp.2.attn_norm.weight": torch.zeros(32)},
        "unexpected tensors (1): mtp.2.attn_norm.weight",
    ),
    "narrow": (
        lambda tensors: tensors | {LAST + "markov_head.markov_w2.weight": torch.zeros(67, 5)},
        "mis-shaped tensors (1): mtp.1.markov_head.markov_w2.weight [67, 5] instead of [67, 6]",
    ),
}


@pytest.mark.parametrize(("tensors_of", "fault"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_loader_and_doctor(
    changed, rounds, capsys, tensors_of, fault
):
    folder = changed(tensors_of)
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load(folder, rounds.target)
    assert run(["doctor", "mtp", "--model", str(folder), "--no-probe"]) == 1
    assert fault in " ".join(capsys.readouterr().out.split())


FIELDS = {
    "mask": ({"dspark_noise_token_id": 67}, "dspark_noise_token_id to 67"),
    "layers": ({"dspark_target_layer_ids": [3]}, "0 to 2, in dspark_target_layer_ids, got [3]"),
    "rank": ({"dspark_markov_rank": 0}, "dspark_markov_rank"),
    "size": ({"dspark_block_size": 64}, "dspark_block_size"),
    "stages": ({"n_mtp_layers": 65}, "n_mtp_layers to 65"),
    "experts": ({"dspark_n_routed_experts": 3}, "dspark_n_routed_experts to 3"),
}


@pytest.mark.parametrize(("fields", "fault"), FIELDS.values(), ids=FIELDS)
def test_fields_that_do_not_fit_are_refused_by_name(changed, fields, fault):
    with pytest.raises(ConfigError, match=re.escape(fault)):
        read_folder(changed(**fields))


def test_the_doctor_explains_it(saved, capsys):
    assert run(["doctor", "mtp", "--model", str(saved[0]), "--no-probe"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "DSpark of deepseek-v4, 2 layers" in shown
    assert "after 1, 3 of 3 layers, mean of 2 residual streams" in shown
    assert "4 slots in one pass, 4 drafts" in shown
    assert "the modules fit" in shown


def test_it_drafts_unless_another_drafter_is_named(saved):
    folder = saved[0]
    found = find_drafter(DraftConfig(), model=str(folder), folder=folder, reporter=SilentReporter())
    assert holds_drafter(folder)
    fitted = fit_draft(found, folder)
    assert (fitted.drafter, fitted.steps) == ("mtp", SIZE)
    with pytest.raises(ConfigError, match="drafts 4 tokens in a block, and 5 steps"):
        fit_draft(replace(found, steps=5), folder)


def test_a_longer_block_than_rows_can_take_back_drafts_what_they_can(changed):
    folder = changed(dspark_block_size=40)
    fitted = fit_draft(DraftConfig(drafter="mtp"), folder)
    assert resolve_budget(fitted).tree.nodes == MOST_ROW_NODES


def test_a_folder_that_dropped_it_decodes_plainly_unless_it_is_named(changed):
    folder = changed(
        lambda tensors: {name: each for name, each in tensors.items() if "mtp." not in name}
    )
    place = {"model": str(folder), "folder": folder, "reporter": SilentReporter()}
    assert find_drafter(DraftConfig(), **place).drafter == "none"


@pytest.mark.slow
def test_a_model_that_is_named_alone_drafts_with_it(saved):
    greedy = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
    said = []
    for choice in ({"draft": "none"}, {}):
        llm = LLM(
            saved[0], device="cpu", adaptive=False, max_model_len=64, max_num_seqs=2, **choice
        )
        asked = [{"prompt_token_ids": prompt(20)}]
        (output,) = llm.generate(asked, greedy, use_tqdm=False)
        said.append(output.outputs[0])
    assert said[0].token_ids == said[1].token_ids
    assert said[1].acceptance.drafted > 0
