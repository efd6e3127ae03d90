"""The draft module inside recurrent models: what transformers' layers make of it, and drafting."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recurrent import CPU, FAMILIES, PAGE_SIZE, prompt
from support.recurrent_module import save_with_module
from support.row_matrix import Case, mismatches, shape_of
from support.steps import NO_FLAGS, batch_of
from support.v4 import planner_of

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.mtp.module_loader import load_modules
from outrider.models.target import load_target
from outrider.ops.tree.chain import single_node
from outrider.runtime.draft_kinds import ModelDraft
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.wire.draft_budget import Budget


@pytest.fixture(scope="module", params=list(FAMILIES))
def made(request, tmp_path_factory):
    """A folder, the module in it, and the target as we load it."""
    folder = tmp_path_factory.mktemp("module")
    module = save_with_module(folder, request.param)
    return folder, module, load_target(folder, dtype="float32", device=CPU)


def test_every_row_of_a_text_has_the_state_of_the_definition(made):
    folder, module, target = made
    ours = load_modules(folder, target=target, most=1, dtype="float32")
    backend = ReferenceAttention(page_size=PAGE_SIZE, dtype=torch.float32)
    planner, table, num_pages = planner_of(backend, nodes=1)
    heads = ours.facts.attention
    layout = KVLayout(
        layers=1, vectors=heads.vectors, width=heads.width, page_size=16, dtype=torch.float32
    )
    tokens, states = prompt(40, seed=3), torch.randn(40, 32)
    plan = planner.plan(batch_of({}, {1: (0, tokens)}, nodes=1), sampling_flags=NO_FLAGS)
    resolve_lengths(plan, table)
    tree = single_node(table.last_tokens[plan.decode.rows])
    fill(plan, tree, table=table, attention=backend, page_size=PAGE_SIZE)
    with torch.inference_mode():
        pool = KVPool(layout, num_pages=num_pages, device=CPU)
        found = ours.forward(plan, states, pool, backend)
    torch.testing.assert_close(found, module.run(tokens, states), rtol=0, atol=1e-4)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_the_tokens_stay_those_of_the_reference_decoder(made, executor):
    folder, module, target = made
    modules = load_modules(folder, target=target, most=1, dtype="float32")
    draft = ModelDraft(model=modules, budget=Budget(steps=3, topk=1, nodes=4))
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
    assert not mismatches(module.theirs, target, Case("sampled", draft, shape))


def test_drafts_are_what_the_definition_says(made):
    """The first round after a prompt: what the module says when it reads itself."""
    folder, module, _ = made
    text = prompt(21, seed=9)
    theirs = module.theirs
    with torch.no_grad():
        bonus = int(theirs(torch.tensor([text])).logits[0, -1].argmax())
    draft = DraftConfig(drafter="mtp", adaptive=False, steps=3)
    llm = LLM(folder, draft=draft, adaptive=False, device="cpu", max_model_len=64, max_num_seqs=2)
    params = SamplingParams(temperature=0.0, max_tokens=5, detokenize=False, ignore_eos=True)
    (said,) = llm.generate([text], params, use_tqdm=False)
    expected, tokens = module.repeat([*text, bonus], 3), said.outputs[0].token_ids[1:]
    agreed = next((i for i in range(3) if expected[i] != tokens[i]), 3)
    assert said.outputs[0].acceptance.kept >= agreed
    assert said.outputs[0].acceptance.drafted >= 3


def test_the_module_changes_no_token_of_a_whole_engine(made):
    folder, prompts = made[0], [[7, 3, 44, 19, 60, 2, 31, 8], [5, 9]]
    params = SamplingParams(
        temperature=1.0, seed=4, max_tokens=12, detokenize=False, ignore_eos=True
    )
    said = []
    for drafter in ("none", "mtp"):
        draft = DraftConfig(drafter=drafter, adaptive=False)
        llm = LLM(
            folder, draft=draft, adaptive=False, device="cpu", max_model_len=64, max_num_seqs=2
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]
    assert all(output.outputs[0].acceptance.drafted for output in outputs)


def test_the_doctor_finds_it_and_says_how_norms_are_stored(made, capsys):
    assert run(["doctor", "mtp", "--model", str(made[0]), "--no-probe"]) == 0
    said = capsys.readouterr().out
    assert "mtp.layers.0.*" in said
    assert "stored from zero" in said


def test_a_tree_over_it_is_refused_with_the_fix(made):
    with pytest.raises(ConfigError, match="--topk 1"):
        LLM(
            made[0],
            device="cpu",
            draft="mtp",
            adaptive=False,
            steps=2,
            topk=2,
            max_model_len=64,
            max_num_seqs=2,
        )


def test_a_module_that_lost_a_norm_is_refused_by_name(made, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((made[0] / name).read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    del stored["mtp.pre_fc_norm_hidden.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"mtp\.pre_fc_norm_hidden\.weight"):
        LLM(tmp_path, device="cpu", draft="mtp", adaptive=False, max_model_len=64, max_num_seqs=2)
