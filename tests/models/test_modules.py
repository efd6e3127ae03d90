"""Draft modules in a checkpoint: found by tensor names, loaded strictly, no part of the target."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import make_submission, run_all
from support.heads import write_head
from support.module_oracle import ModuleOracle
from support.modules import (
    TABLES,
    add_modules,
    edit_config,
    module_tensors,
    spelled,
    with_modules,
    write_mimo,
)
from support.tiny import VOCAB, save_tiny

from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import CacheConfig, EngineConfig, LimitsConfig
from outrider.engine.engine import Engine
from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.model_config import read_config
from outrider.models.mtp.inspect_modules import count_modules
from outrider.models.mtp.module_loader import load_modules
from outrider.runtime.model_home import ModelHome
from outrider.wire.row_sampling import RowSampling

CPU = torch.device("cpu")
LAYERS = 3  # of the tiny targets


@pytest.fixture
def mimo(tmp_path):
    return write_mimo(tmp_path)


def write_model(folder, family):
    """A tiny model with two modules, in the published form of its family."""
    if family == "mimo":
        return write_mimo(folder)
    save_tiny(family, folder)
    target = load_decoder(folder, dtype="float32", device=CPU)
    weights = [module_tensors(target, seed=index) for index in range(2)]
    add_modules(folder, target.config.family.modules, weights, num_layers=LAYERS)
    return folder


def edit_tensors(folder, change):
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def count(folder):
    return count_modules(folder, read_config(folder))


def test_a_target_loads_without_its_modules(mimo):
    plain = load_decoder(mimo, dtype="float32", device=CPU)
    assert plain.config.num_layers == LAYERS
    assert count(mimo) == 2
    edit_tensors(mimo, lambda stored: stored.update({"model.unknown.weight": torch.ones(3)}))
    with pytest.raises(ConfigError, match=r"unexpected tensors \(1\): model.unknown.weight"):
        load_decoder(mimo, dtype="float32", device=CPU)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("steps", [1, 2, "auto"])
@pytest.mark.parametrize("family", ["mimo", "deepseek-v3", "glm4-moe", "glm4-moe-air"])
def test_drafting_with_own_modules_changes_no_token(tmp_path, family, steps):
    folder = write_model(tmp_path, family)
    submissions = [
        make_submission(
            f"r{i}", [7 * i + 3, 5, 9], RowSampling(seed=i, temperature=i * 0.7), max_tokens=12
        )
        for i in range(3)
    ]

    def answers(draft):
        config = EngineConfig(
            dtype="float32", device="cpu", draft=draft, cache=CacheConfig(kv_tokens=512)
        )
        runner, facts = ModelHome(folder, config).build()
        outputs = run_all(Engine(runner, facts, runner.grammars), submissions)
        return {name: one.tokens for name, one in outputs.items()}, facts.draft

    plain, _ = answers(DraftConfig(drafter="none"))
    drafted, facts = answers(DraftConfig(drafter="mtp", steps=steps))
    assert drafted == plain
    assert facts.budget.steps == (2 if steps == "auto" else steps)
    assert facts.lookahead == facts.budget.steps


@pytest.mark.parametrize(("num", "step_tokens", "is_room"), [(2, 14, True), (5, 20, False)])
def test_step_tokens_must_cover_one_node_more_than_there_are_modules(
    tmp_path, num, step_tokens, is_room
):
    """The default of four nodes does not apply: 4 rows of them would take 16 tokens."""
    folder = write_mimo(tmp_path, num=num)
    limits = LimitsConfig(rows=4, step_tokens=step_tokens)
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        draft=DraftConfig(drafter="mtp"),
        cache=CacheConfig(kv_tokens=512),
        limits=limits,
    )
    if is_room:
        _, facts = ModelHome(folder, config).build()
        assert facts.draft.budget.nodes == num + 1
    else:
        with pytest.raises(ConfigError, match=r"must exceed max_num_seqs \(4\) times nodes \(6\)"):
            ModelHome(folder, config).build()


def test_modules_that_an_export_dropped_are_refused_with_the_reason(mimo):
    edit_tensors(mimo, lambda stored: [stored.pop(n) for n in list(stored) if "mtp_layers" in n])
    with pytest.raises(ConfigError, match=r"num_nextn_predict_layers 2, but .* often drop them"):
        count(mimo)
    edit_config(mimo, num_nextn_predict_layers=0)
    with pytest.raises(ConfigError, match=r"holds no draft modules \(model[.\w]*\*"):
        count(mimo)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda s: s.pop("model.mtp_layers.1.input_proj.weight"), "lacks .*1.input_proj"),
        (lambda s: s.update({"model.mtp_layers.2.x": torch.ones(1)}), "unexpected .*layers.2.x"),
        (
            lambda s: s.update({"model.mtp_layers.0.final_layernorm.weight": torch.ones(5)}),
            r"mis-shaped .*final_layernorm.weight \[5\] instead of \[32\]",
        ),
        (
            lambda s: s.update(
                {"model.mtp_layers.0.mlp.up_proj.weight": torch.ones(48, 32, dtype=torch.int8)}
            ),
            "quantised .*up_proj.weight as I8",
        ),
    ],
)
def test_incomplete_modules_are_refused_by_name(mimo, change, fault):
    edit_tensors(mimo, change)
    with pytest.raises(ConfigError, match=fault):
        count(mimo)


def test_a_target_whose_config_is_damaged_is_not_called_a_head(mimo):
    config = read_config(mimo)
    (mimo / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read .* pass a Hugging"):
        count_modules(mimo, config)


def test_fewer_stored_modules_than_the_config_says_are_refused(mimo):
    edit_config(mimo, num_nextn_predict_layers=3)
    with pytest.raises(ConfigError, match=r"lacks .*mtp_layers.2"):
        count(mimo)
    edit_config(mimo, num_nextn_predict_layers="many")
    with pytest.raises(ConfigError, match="needs a number"):
        count(mimo)


def test_a_family_without_modules_is_refused_with_the_fix(tmp_path):
    save_tiny("llama", tmp_path)
    with pytest.raises(ConfigError, match="llama has none; use another --draft"):
        count(tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_owns_exactly_the_tensors_of_its_modules(name, tmp_path):
    table = TABLES[name]
    made = with_modules(tmp_path, table, num=2)
    stored = set(load_file(tmp_path / "model.safetensors"))
    owned = {name for name in stored if table.owns(name, LAYERS)}
    written = spelled(table, made.weights[0], 0, LAYERS) | spelled(
        table, made.weights[1], 1, LAYERS
    )
    assert owned == set(written)
    assert len(made.load()) == 2


@pytest.mark.parametrize("is_copy", [True, False])
def test_stored_embeddings_and_heads_of_modules_are_used_unless_they_are_copies(tmp_path, is_copy):
    made = with_modules(tmp_path, TABLES["deepseek"], num=1, body="llama")
    theirs = made.theirs
    generator = torch.Generator().manual_seed(3)
    noise = 0.0 if is_copy else 1.0
    own = {
        "embedding": theirs.model.embed_tokens.weight.detach().clone(),
        "head": theirs.lm_head.weight.detach().clone(),
    }
    own = {
        name: tensor + noise * torch.randn(tensor.shape, generator=generator)
        for name, tensor in own.items()
    }
    weights = [made.weights[0] | own]
    add_modules(tmp_path, made.table, weights, num_layers=LAYERS)
    (module,) = load_modules(tmp_path, target=made.target, most=1, dtype="float32")._modules
    assert (module._parts.embedding is made.target.embedding) == is_copy
    assert (module._parts.score == made.target.logits) == is_copy
    right = ModuleOracle(replace(made, weights=weights), num=1)._choose
    for seed in range(5):
        state = torch.randn(32, generator=torch.Generator().manual_seed(seed))
        assert int(module.logits(state[None])[0].argmax()) == right(0, state, 0, None)


def test_a_module_with_experts_loads_as_the_layers_of_the_target(tmp_path):
    made = with_modules(tmp_path, TABLES["deepseek"], num=2, body="qwen3-moe")
    names = [name for name in load_file(tmp_path / "model.safetensors") if ".layers.4." in name]
    assert any("experts.5.down_proj" in name for name in names)
    assert len(made.load()) == 2
    assert made.load().target_ids.shape == (VOCAB,)


def test_the_doctor_prints_the_modules_of_a_model(mimo, capsys):
    assert run(["doctor", "mtp", "--model", str(mimo), "--no-probe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if line[:1].isalpha())
    assert facts["modules"].strip() == "2 of mimo"
    assert facts["tensors"].strip() == "model.mtp_layers.0.* to model.mtp_layers.1.*"
    assert facts["joins"].strip() == "state, then token"
    assert facts["head"].strip() == "the target's"
    assert any(line.startswith("the modules fit") for line in lines)


def test_the_doctor_prints_the_problem_of_modules_and_fails(mimo, capsys):
    edit_tensors(mimo, lambda stored: stored.pop("model.mtp_layers.0.token_layernorm.weight"))
    assert run(["doctor", "mtp", "--model", str(mimo)]) == 1
    assert "problem: " in (out := capsys.readouterr().out)
    assert "lacks tensors (1): model.mtp_layers.0.token_layernorm.weight" in out


def test_the_doctor_of_a_head_notes_that_the_model_has_modules(mimo, tmp_path, capsys):
    head = write_head(tmp_path / "head", read_config(mimo), layers=(1,))
    assert run(["doctor", str(head), "--model", str(mimo), "--no-probe"]) == 0
    assert "the model has modules of its own (2): --draft mtp" in capsys.readouterr().out
