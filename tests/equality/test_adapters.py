"""Rows with different adapters, and without, in one batch: each gets PEFT's tokens."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.lora import ALL, greedy_tokens, save_adapter
from support.matrix import TREES

from outrider import LLM, LoRARequest, SamplingParams
from outrider.engine.waiting_queue import WaitingQueue
from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import AdapterBank, BankSizes
from outrider.models.adapters.peft_config import PeftConfig
from outrider.models.decoder_loader import load_decoder
from outrider.runtime import program
from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.adapter import NO_ADAPTER
from outrider.wire.failure import FailureKind
from outrider.wire.row_sampling import LogprobsWanted, RowSampling
from outrider.wire.submission import Submission

CPU = torch.device("cpu")
BANK = BankSizes(num_slots=2, max_rank=4)
# More than two pages of four: the adapters differ in what these pages hold.
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13, 21, 40]
GREEDY = RowSampling(seed=0, temperature=0.0, logprobs=LogprobsWanted(chosen=True))
SAMPLED = RowSampling(seed=5, temperature=0.9, logprobs=LogprobsWanted(chosen=True))
NAMES = ["none", "first", "second", "third"]
FORMS = {
    "first": {"seed": 1},
    "second": {"seed": 2, "r": 2, "target_modules": ALL[:4]},
    "third": {"seed": 3, "lora_alpha": 3, "target_modules": ALL[4:]},
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Each adapter of the tiny llama, and PEFT's tokens after the prompt."""
    root, found = tmp_path_factory.mktemp("adapters"), {}
    for name, form in FORMS.items():
        theirs = save_adapter("llama", root / name, **form)
        found[name] = (find_adapter(root / name), greedy_tokens(theirs, PROMPT, 8))
    with theirs.disable_adapter():
        found["none"] = (NO_ADAPTER, greedy_tokens(theirs, PROMPT, 8))
    assert len({tuple(tokens) for _, tokens in found.values()}) == 4, "every adapter shows"
    return found


@pytest.fixture(scope="module")
def adapted(models):
    return with_room(models)


def with_room(models):
    """The target with slots for adapters, all of them empty."""
    target = load_decoder(models.folder, dtype="float32", device=CPU, bank=BANK)
    return replace(models, target=target)


def engine(models, draft=None, **shape):
    own = Shape(max_loras=BANK.num_slots, **{"max_rows": 8, **shape})
    return engine_of(models.target, own, *([draft] if draft else []))


def request(name, adapters, *, sampling=GREEDY, key=""):
    adapter, _ = adapters[name]
    return replace(make_submission(key or name, PROMPT, sampling), adapter=adapter)


def test_rows_of_several_adapters_in_one_batch_get_their_own_tokens(adapted, adapters):
    names = ["none", "first", "second"]
    out = run_all(engine(adapted), [request(name, adapters) for name in names])
    assert {name: out[name].tokens for name in names} == {name: adapters[name][1] for name in names}


def test_a_cached_prefix_serves_its_own_adapter_only(adapted, adapters):
    own = engine(adapted)
    for name in ["first", "none", "second", "first"]:
        out = run_all(own, [request(name, adapters)])[name]
        assert out.tokens == adapters[name][1], name
    assert out.last.progress.cached == 12  # the second time
    salted = replace(request("none", adapters), cache_salt=adapters["first"][0].path)
    assert run_all(own, [salted])["none"].tokens == adapters["none"][1]


def test_more_adapters_than_slots_take_turns(adapted, adapters):
    own, names = engine(adapted, executor="tape"), [*NAMES, *NAMES]
    requests = [request(name, adapters, key=f"{i}") for i, name in enumerate(names)]
    out = run_all(own, requests)
    for i, name in enumerate(names):
        assert out[f"{i}"].tokens == adapters[name][1], name


def test_requests_without_an_adapter_pass_one_that_waits_for_a_slot(adapted, adapters):
    own = engine(adapted)
    for name in ["first", "second", "third", "none"]:
        own.add(request(name, adapters))
    own.step()
    assert own.stats.queue.waiting == 1
    assert own.stats.queue.running == 3


def test_requests_that_wait_for_a_slot_stay_in_their_queue(adapted, adapters, monkeypatch):
    own, pushed, push = engine(adapted), [], WaitingQueue.push
    for i, name in enumerate(["first", "second", *["third"] * 40]):
        own.add(request(name, adapters, key=str(i)))
    own.step()

    def noted(queue, request):
        pushed.append(request)
        push(queue, request)

    monkeypatch.setattr(WaitingQueue, "push", noted)
    own.step()
    assert own.stats.queue.waiting == 40
    assert not pushed


def test_an_adapter_that_vanishes_while_it_waits_ends_its_own_request_only(
    adapted, adapters, tmp_path
):
    own, held = engine(adapted), BANK.num_slots + 4
    for name in ("lost", *map(str, range(held))):
        shutil.copytree(adapters["first"][0].path, tmp_path / name)
    lost = replace(make_submission("lost", PROMPT, GREEDY), adapter=find_adapter(tmp_path / "lost"))
    requests = [lost, request("none", adapters), request("first", adapters)]
    for each in requests:
        own.add(each)
    for name in range(held):  # others push it out of host memory
        own.check_adapter(find_adapter(tmp_path / f"{name}"))
    shutil.rmtree(tmp_path / "lost")
    out = run_all(own, [])
    assert own.num_failed_steps == 0
    assert out["lost"].last.failure.kind is FailureKind.REQUEST
    assert "there is no adapter" in out["lost"].last.failure.reason
    assert [out[name].tokens for name in ("none", "first")] == [
        adapters[name][1] for name in ("none", "first")
    ]
    assert run_all(own, [request("second", adapters)])["second"].tokens == adapters["second"][1]


@pytest.mark.parametrize("name", ["none", "first"])
def test_the_bits_of_a_row_do_not_depend_on_the_adapters_beside_it(name, adapted, adapters):
    def logprobs(*beside):
        own = engine(adapted)
        names = [*beside, name]
        requests = [request(each, adapters, key=f"{i}") for i, each in enumerate(names)]
        return run_all(own, requests)[f"{len(beside)}"].logprobs

    alone = logprobs()
    assert logprobs("second") == alone  # in another slot
    assert logprobs("none", "second", "none") == alone


def ngram(budget):
    return NgramDraft(budget=budget, min_match=1, max_match=4)


CASES = [
    ("none", "chain", "tape", 1),
    ("ngram", "chain", "eager", 1),
    ("twin", "tree", "eager", 0),
    ("relative", "chain", "tape", 0),
    ("eagle", "tree", "tape", 1),
    ("eagle3", "chain", "eager", 1),
    ("mtp", "wide", "eager", 0),
    ("modules", "chain", "tape", 0),
    ("dflash", "tree", "eager", 1),
    ("dspark", "chain", "tape", 0),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("drafter", "tree", "executor", "depth"), CASES)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_token_of_adapted_rows(
    drafter, tree, executor, depth, sampling, adapted, models, adapters
):
    budget = TREES[tree]
    draft = ngram(budget) if drafter == "ngram" else models.draft(drafter, budget)
    requests = [
        request(name, adapters, sampling=sampling, key=f"{i}")
        for i, name in enumerate(["first", "none", "second", "first"])
    ]
    right = run_all(engine(adapted), requests)
    shape = {"executor": executor, "depth": depth, "step_tokens": 8 * budget.nodes + 7}
    got = run_all(engine(adapted, draft, **shape), requests)
    for key, own in right.items():
        assert got[key].tokens == own.tokens, key


def test_an_engine_that_slept_runs_through_adapters_again(models, adapters):
    llm = LLM(models.folder, draft="none", dtype="float32", kv_tokens=512, enable_lora=True)
    adapter, right = adapters["first"]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    for level in (1, 2):
        lora = LoRARequest("first", 1, adapter.path)
        prompt = {"prompt_token_ids": PROMPT}
        (output,) = llm.generate(prompt, params, use_tqdm=False, lora_request=lora)
        assert list(output.outputs[0].token_ids) == right, level
        llm.sleep(level)
        llm.wake_up()


def share_prefixes(monkeypatch):
    monkeypatch.setattr(Submission, "prefix_salt", property(lambda self: b""))


def forget_the_scale(monkeypatch):
    monkeypatch.setattr(PeftConfig, "scale_of", lambda self, module: 1.0)


def swap_the_slots(monkeypatch):
    place = AdapterBank.place
    monkeypatch.setattr(AdapterBank, "place", lambda self, slot, own: place(self, 3 - slot, own))


def load_no_second_adapter(monkeypatch):
    place = AdapterBank.place
    monkeypatch.setattr(AdapterBank, "place", lambda self, _, own: place(self, 1, own))


def give_prompts_no_adapter(monkeypatch):
    fill = program.fill_adapters

    def decode_rows_alone(plan, table):
        fill(plan, table)
        plan.queries.adapters[plan.shape.num_decode_query :] = 0

    monkeypatch.setattr(program, "fill_adapters", decode_rows_alone)


MUTANTS = [
    share_prefixes,
    forget_the_scale,
    swap_the_slots,
    load_no_second_adapter,
    give_prompts_no_adapter,
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("mutant", [None, *MUTANTS])
def test_known_mistakes_change_tokens(mutant, models, adapters, monkeypatch):
    if mutant is not None:
        mutant(monkeypatch)
    own, names = engine(with_room(models)), ["first", "none", "second"]
    out = run_all(own, [request("first", adapters, key="before")])
    out |= run_all(own, [request(name, adapters) for name in names])
    is_right = all(out[name].tokens == adapters[name][1] for name in names)
    assert is_right == (mutant is None)
