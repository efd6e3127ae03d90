"""Adapters of a draft head: each row drafts as a head does into which its adapter was merged."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.draft_adapters import FORMS, drafts_of, write_adapter
from support.engines import Shape, engine_of, make_submission, run_all
from support.heads import write_head
from support.lora import greedy_tokens, save_adapter
from support.matrix import TREES

from outrider import LLM, LoRARequest, SamplingParams
from outrider.errors import ConfigError, RequestError
from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.runtime.draft_kinds import ModelDraft
from outrider.spec.model_drafter import ModelDrafter
from outrider.wire.adapter import NO_ADAPTER, prefix_salt
from outrider.wire.row_sampling import RowSampling

CPU = torch.device("cpu")
BANK = BankSizes(num_slots=2, max_rank=4, has_head=True)
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13, 21, 40]
GREEDY = RowSampling(seed=0, temperature=0.0, trace=True)
SAMPLED = RowSampling(seed=5, temperature=0.9, trace=True)


def draft_of(folder, target, models, tree):
    head = load_head(
        folder, target=target, target_folder=models.folder, dtype="float32", device=CPU
    )
    return ModelDraft(model=head, budget=TREES[tree])


@pytest.fixture(scope="module", params=["eagle", "eagle3"])
def tenants(request, models, tmp_path_factory):
    """The folder of the head, and by name: an adapter, and a head with that adapter merged."""
    root = tmp_path_factory.mktemp("tenants")
    write_head(root / "head", models.target.config, algorithm=request.param, seed=4)
    found = {"none": (NO_ADAPTER, root / "head")}
    for seed, (name, modules) in enumerate(FORMS.items()):
        merged = write_head(root / f"{name}-head", models.target.config, algorithm=request.param)
        tensors = write_adapter(root / name / "draft", root / "head", modules, seed=seed)
        save_file(tensors, merged / "model.safetensors")
        found[name] = (find_adapter(root / name), merged)
    return root / "head", found


def engine(models, head, tree, *, bank=BANK, **shape):
    target = load_decoder(models.folder, dtype="float32", device=CPU, bank=bank)
    own = Shape(max_loras=bank.num_slots, **{"max_rows": 8, **shape})
    return engine_of(target, own, draft_of(head, target, models, tree))


def request(name, tenants, sampling=GREEDY, key=""):
    adapter = tenants[name][0]
    return replace(make_submission(key or name, PROMPT, sampling), adapter=adapter)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tree", ["chain", "tree"])
@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_rows_draft_like_heads_with_their_adapters_merged(
    models, tenants, executor, tree, sampling
):
    head, found = tenants
    requests = [request(name, found, sampling) for name in found]
    together = drafts_of(engine(models, head, tree, executor=executor), requests)
    plain = run_all(engine_of(models.target, Shape()), [make_submission("p", PROMPT, sampling)])
    for name, (_, merged) in found.items():
        alone = engine_of(models.target, Shape(), draft_of(merged, models.target, models, tree))
        right = drafts_of(alone, [make_submission(name, PROMPT, sampling)])[name]
        assert together[name] == right, name
        assert together[name][0] == plain["p"].tokens, "drafts change no token"
    assert len({str(trees) for _, trees in together.values()}) == 3, "every adapter shows"


@pytest.mark.slow
def test_a_prefix_serves_its_own_draft_adapter_only(models, tenants):
    head, found = tenants
    own = engine(models, head, "chain")
    for name in ["all", "none", "attention", "all"]:
        cold = drafts_of(engine(models, head, "chain"), [request(name, found)])
        assert drafts_of(own, [request(name, found)]) == cold, name
    assert len({prefix_salt(adapter, "") for adapter, _ in found.values()}) == 3


@pytest.mark.fast_cases(1)
def test_both_parts_of_an_adapter_are_used(models, tenants, tmp_path):
    head, found = tenants
    theirs, answers = save_adapter("llama", tmp_path, seed=1), []
    for has_draft in (False, True):
        if has_draft:
            (tmp_path / "draft").symlink_to(Path(found["all"][0].path) / "draft")
        submission = replace(make_submission("r", PROMPT, GREEDY), adapter=find_adapter(tmp_path))
        answers.append(drafts_of(engine(models, head, "chain"), [submission])["r"])
    target, both = answers
    assert target[0] == both[0] == greedy_tokens(theirs, PROMPT, 8), "drafts change no token"
    assert target[1] != both[1]


@pytest.mark.fast_cases(1)
def test_adapters_that_do_not_fit_the_head_are_refused_by_name(models, tenants, tmp_path):
    head, found = tenants
    shutil.copytree(found["attention"][0].path, tmp_path / "bad")
    weights = tmp_path / "bad" / "draft" / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = next(each for each in tensors if each.endswith("q_proj.lora_B.weight"))
    save_file({**tensors, name: tensors[name][:-1].clone()}, weights)
    with pytest.raises(RequestError, match=r"q_proj\.lora_B\.weight of the adapter is"):
        engine(models, head, "chain").check_adapter(find_adapter(tmp_path / "bad"))


@pytest.mark.fast_cases(1)
def test_an_adapter_of_a_head_alone_needs_a_head(models, tenants):
    head, found = tenants
    own = engine(models, head, "chain", bank=replace(BANK, has_head=False))
    with pytest.raises(RequestError, match=r"draft head alone .* start with --enable-draft-lora"):
        own.check_adapter(found["all"][0])


@pytest.mark.slow
def test_a_head_that_forgets_its_adapters_is_seen(models, tenants, monkeypatch):
    """Drafts change no token, so nothing else would notice it."""
    head, found = tenants
    right = drafts_of(engine(models, head, "chain"), [request("all", found)])
    bind = ModelDrafter.bind

    def without(self, shape, decode, chunk):
        return bind(self, shape.without_adapters(), decode, chunk)

    monkeypatch.setattr(ModelDrafter, "bind", without)
    assert drafts_of(engine(models, head, "chain"), [request("all", found)]) != right


@pytest.mark.slow
def test_a_call_names_the_adapter_of_the_head_by_its_folder(models, tenants):
    head, found = tenants
    room = {"enable_lora": True, "enable_draft_lora": True, "max_lora_rank": 4, "kv_tokens": 512}
    llm = LLM(models.folder, draft=str(head), dtype="float32", check_draft=False, **room)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompt, tenant = {"prompt_token_ids": PROMPT}, LoRARequest("all", 1, found["all"][0].path)
    plain, own = llm.generate([prompt, prompt], params, lora_request=[None, tenant], use_tqdm=False)
    assert plain.outputs[0].token_ids == own.outputs[0].token_ids


@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_drafters_without_a_head_take_no_adapters(models, draft):
    with pytest.raises(ConfigError, match="is for EAGLE and EAGLE-3 heads"):
        LLM(models.folder, draft=draft, enable_lora=True, enable_draft_lora=True, kv_tokens=64)
    with pytest.raises(ConfigError, match="needs --enable-lora"):
        LLM(models.folder, draft=draft, enable_draft_lora=True)
