"""Small models inside larger bodies: the same logits, tokens and drafts, at another cost."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from support.engines import NO_DRAFT, Shape, engine_of, make_submission, run_all
from support.heads import write_head
from support.modules import add_modules, module_tensors
from support.steps import NO_FLAGS, batch_of, small_device
from support.tiny import SIZES, VOCAB
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from benchmarks.__main__ import app, run
from benchmarks.steps.body import Body, find_body
from benchmarks.widen.fit_body import IDENTITY, fit, spread, spread_aux_layers, usual_aux_layers
from benchmarks.widen.load_widened import build_wide, build_wide_heads, opened
from benchmarks.widen.places import Noise
from benchmarks.widen.widened_answers import (
    AnsweringRows,
    WidenedQuestions,
    count_equal,
    window_tokens,
)
from benchmarks.widen.widened_tensors import WideTensors
from benchmarks.widen.write_widened import HEAD_FOLDER, write_widened
from outrider.errors import ConfigError
from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.layers.rotary_embedding import scaled_frequencies
from outrider.models.model_config import parse_config, read_config
from outrider.models.mtp.module_tables import MIMO
from outrider.models.registry import FAMILIES
from outrider.models.safetensors_reader import Checkpoint
from outrider.ops.tree.chain import single_node
from outrider.runtime.draft_kinds import ModelDraft
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits

CPU = torch.device("cpu")
NUM_LAYERS = 6
BODY_FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 9,
    "hidden_size": 56,  # of 32
    "intermediate_size": 80,  # of 48
    "num_attention_heads": 9,  # three groups of three, of two groups of two
    "num_key_value_heads": 3,
    "head_dim": 24,  # of 8
    "vocab_size": 90,  # of 67
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
CHAIN, TREE = Budget(steps=3, topk=1, nodes=4), Budget(steps=3, topk=3, nodes=9)


def body_of(**fields) -> Body:
    return Body(
        name="larger", config=parse_config(BODY_FIELDS | fields), draft_vocab=1, is_cut=False
    )


def save_model(folder: Path, *, seed: int, **fields) -> Path:
    """A random Llama whose head is far from indifferent."""
    torch.manual_seed(seed)
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": NUM_LAYERS, **fields})
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"), seed=0)


@pytest.fixture(scope="module")
def written(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A wide folder, and inside it the wide form of a head with taps of its own."""
    place = tmp_path_factory.mktemp("written")
    head = write_head(place / "small-head", read_config(small), layers=(1, 3, 6))
    write_widened(small, body_of(), place / "wide", heads=(head,), dtype="float32")
    return place


def logits_of(decoder, tokens):
    """Scores after every token of one text, through a real plan."""
    device = small_device(random.Random(0), page_size=4, nodes=1)
    attention = decoder.config.attention
    layout = KVLayout(
        layers=decoder.config.num_layers,
        vectors=attention.vectors,
        width=attention.width,
        page_size=4,
        dtype=decoder.dtype,
    )
    pool = KVPool(layout, num_pages=device.num_pages, device=CPU)
    plan = device.planner.plan(batch_of({}, {1: (0, tokens)}, nodes=1), sampling_flags=NO_FLAGS)
    with torch.inference_mode():
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=4)
        return decoder.logits(decoder.hidden_states(plan, pool, device.attention))


def prompt(length, seed):
    return random.Random(seed).choices(range(VOCAB), k=length)


MODELS = {
    "tied": {"tie_word_embeddings": True},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    },
    "llama 3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "large eps": {"rms_norm_eps": 1e-2},
}
BODIES = {
    "all larger": {},
    "twice the head dim": {"head_dim": 16},
    "as wide, with equal heads": {
        "hidden_size": 33,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "the same vocabulary and width": {"hidden_size": 32, "vocab_size": VOCAB},
    "as many layers": {"num_hidden_layers": NUM_LAYERS},
}


def check_same_logits(folder, body):
    tokens = prompt(21, seed=3)
    with opened(folder, body, ()) as model:
        wide = build_wide(model, dtype="float32", device=CPU)
    ours = logits_of(wide, tokens)
    theirs = logits_of(load_decoder(folder, dtype="float32", device=CPU), tokens)
    assert theirs.std() > 1
    assert (ours[:, :VOCAB] - theirs).abs().max() <= 1e-3
    assert ours.shape[1] == body.config.vocab_size
    assert bool((ours[:, VOCAB:] < theirs.min() - 1000).all())  # nothing could choose them


@pytest.mark.parametrize("name", MODELS)
def test_a_widened_model_gives_the_logits_of_the_small_one(name, tmp_path):
    check_same_logits(save_model(tmp_path, seed=1, **MODELS[name]), body_of())


def test_draft_modules_beside_a_model_are_no_obstacle(tmp_path, monkeypatch):
    family = replace(FAMILIES["LlamaForCausalLM"], modules=MIMO)
    monkeypatch.setitem(FAMILIES, "LlamaForCausalLM", family)
    folder = save_model(tmp_path, seed=2)
    target = load_decoder(folder, dtype="float32", device=CPU)
    add_modules(folder, MIMO, [module_tensors(target, seed=0)], num_layers=NUM_LAYERS)
    check_same_logits(folder, body_of())


@pytest.mark.parametrize("name", BODIES)
def test_any_larger_body_gives_the_logits_of_the_small_model(name, small):
    check_same_logits(small, body_of(**BODIES[name]))


def test_weights_that_meet_zeros_are_noise_and_equal_on_every_call(small):
    with opened(small, body_of(), ()) as model:
        one, other = (build_wide(model, dtype="float32", device=CPU) for _ in range(2))
    assert torch.equal(logits_of(one, [1, 2]), logits_of(other, [1, 2]))
    with opened(small, body_of(), ()) as model:
        source = WideTensors(model.fit, model.source, Noise(torch.float32, CPU))
        idle = model.fit.layers.index(IDENTITY)
        for layer in (0, idle):
            prefix = f"model.layers.{layer}."
            for name in ("self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj"):
                assert bool((source.read(f"{prefix}{name}.weight") != 0).all())
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            assert not source.read(f"model.layers.{idle}.{name}.weight").any()


SAMPLINGS = {
    "greedy": RowSampling(seed=0, temperature=0.0),
    "sampled": RowSampling(seed=5, temperature=1.0),
}


def answers(model, sampling, draft=NO_DRAFT):
    shape = Shape(page_size=4, max_rows=3, step_tokens=32)
    submissions = [
        make_submission(str(seed), prompt(5 + seed, seed), sampling, max_tokens=24)
        for seed in range(3)
    ]
    outputs = run_all(engine_of(model, shape, draft), submissions)
    rounds = {name: each.last.progress for name, each in outputs.items()}
    return {name: each.tokens for name, each in outputs.items()}, rounds


@pytest.mark.parametrize("law", SAMPLINGS)
def test_the_folder_written_answers_as_the_small_model_does(law, small, written):
    wide = load_decoder(written / "wide", dtype="float32", device=CPU)
    narrow = load_decoder(small, dtype="float32", device=CPU)
    assert wide.config == fit(narrow.config, body_of().config, name="larger").wide
    assert answers(wide, SAMPLINGS[law])[0] == answers(narrow, SAMPLINGS[law])[0]


def drafted(model, head, budget):
    return answers(model, SAMPLINGS["sampled"], ModelDraft(model=head, budget=budget))


VARIANTS = {
    "usual taps": {},
    "own taps": {"layers": (1, 4, 6)},
    "taps at both ends": {"layers": (0, 6)},
    "norms before fc": {"fc_norm": True, "norm_output": True},
    "one norm before fc": {"norm_before_fc": True},
    "residual after the norm": {"norm_before_residual": True},
    "own embedding": {"own_embedding": True},
    "the target's scoring": {"own_head": False},
    "narrower than the target": {"hidden": 20},
    "wider heads": {"head_dim": 12, "theta": 500.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_widened_head_proposes_what_the_small_one_proposes(name, small, tmp_path):
    narrow = load_decoder(small, dtype="float32", device=CPU)
    folder = write_head(tmp_path / "head", narrow.config, seed=2, **VARIANTS[name])
    head = load_head(folder, target=narrow, target_folder=small, dtype="float32", device=CPU)
    with opened(small, body_of(), (folder,)) as model:
        wide = build_wide(model, dtype="float32", device=CPU)
        (wide_head,) = build_wide_heads(model, wide, dtype="float32")
    for budget in (CHAIN, TREE):
        expected, found = drafted(narrow, head, budget), drafted(wide, wide_head, budget)
        assert found == expected  # tokens, rounds and what was kept at every depth
    assert sum(progress.num_accepted for progress in found[1].values()) > 0


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_shares_with_a_tied_model_is_widened_with_it(tied, tmp_path):
    small = save_model(tmp_path / "model", seed=4, tie_word_embeddings=tied)
    narrow = load_decoder(small, dtype="float32", device=CPU)
    folder = write_head(tmp_path / "head", narrow.config, own_head=False)
    head = load_head(folder, target=narrow, target_folder=small, dtype="float32", device=CPU)
    with opened(small, body_of(), (folder,)) as model:
        wide = build_wide(model, dtype="float32", device=CPU)
        (wide_head,) = build_wide_heads(model, wide, dtype="float32")
    assert drafted(wide, wide_head, TREE) == drafted(narrow, head, TREE)


def test_the_head_written_beside_the_model_drafts_as_the_small_one_does(small, written):
    wide = load_decoder(written / "wide", dtype="float32", device=CPU)
    narrow = load_decoder(small, dtype="float32", device=CPU)
    found, expected = (
        load_head(folder, target=target, target_folder=model, dtype="float32", device=CPU)
        for folder, target, model in (
            (written / "wide" / HEAD_FOLDER, wide, written / "wide"),
            (written / "small-head", narrow, small),
        )
    )
    assert drafted(wide, found, TREE) == drafted(narrow, expected, TREE)


def test_small_layers_are_spread_so_that_the_usual_taps_read_the_same_states():
    layers = spread(30, 32)
    assert [index for index, layer in enumerate(layers) if layer == IDENTITY] == [15, 28]
    for small_tap, wide_tap in zip(usual_aux_layers(30), usual_aux_layers(32), strict=True):
        assert sum(layer != IDENTITY for layer in layers[:wide_tap]) == small_tap
    assert spread_aux_layers((2, 15, 27), layers) == (2, 16, 29)
    assert spread_aux_layers((0, 16, 30), layers) == (0, 17, 32)
    assert spread(3, 5) == (0, 1, 2, IDENTITY, IDENTITY)  # the usual taps are not in order


def test_smollm2_fits_into_8b_with_exact_norms_and_angles():
    small, body = find_body("smollm2-135m").config, find_body("llama-8b").config
    found = fit(small, body, name="llama-8b")
    wide = found.wide
    assert (wide.block.hidden, wide.num_layers, wide.vocab_size) == (4096, 32, 128256)
    assert found.channel_share**0.5 == 0.375
    assert wide.block.norm_eps * 4096 + found.constant**2 == pytest.approx(1e-5 * 576, rel=1e-12)
    ours = scaled_frequencies(wide.rope, wide.attention.head_dim)
    assert torch.equal(ours[::2], scaled_frequencies(small.rope, small.attention.head_dim))


TOO_SMALL = [
    ({"hidden_size": 31, "head_dim": 8}, "hidden size is 31 and the model's 32"),
    ({"hidden_size": 32}, "one more channel"),
    ({"intermediate_size": 47}, "intermediate size is 47"),
    ({"num_hidden_layers": 5}, "number of layers is 5"),
    ({"vocab_size": 66}, "vocabulary is 66"),
    ({"head_dim": 12}, "head dim 12 is no multiple of the model's 8"),
    ({"num_key_value_heads": 1}, "1 key-value heads and the model 2"),
    ({"num_attention_heads": 3}, "serve 1 query heads each and the model's 2"),
]


@pytest.mark.parametrize(("fields", "reason"), TOO_SMALL, ids=[str(each[0]) for each in TOO_SMALL])
def test_a_body_that_cannot_hold_the_model_is_refused(fields, reason, small):
    with (
        pytest.raises(ConfigError, match=reason) as refused,
        opened(small, body_of(**fields), ()),
    ):
        pass
    assert str(refused.value).startswith("larger cannot hold the model: ")


BAD_HEADS = [
    ({"algorithm": "eagle"}, "no EAGLE-3 head"),
    ({"uses_aux": False}, "no EAGLE-3 head"),
    ({"attention_bias": True}, "biases"),
    ({"head_norm": True}, "norms of single heads"),
    ({"hidden": 20, "fc_norm": True}, "share one eps"),
    ({"hidden": 64}, "hidden size is 56 and the model's 64"),
    ({"head_dim": 16}, "no multiple of the model's 16"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD_HEADS, ids=[str(each[0]) for each in BAD_HEADS])
def test_a_head_that_cannot_be_widened_is_refused(flags, reason, small, tmp_path):
    folder = write_head(tmp_path / "head", read_config(small), **flags)
    with pytest.raises(ConfigError, match=reason), opened(small, body_of(), (folder,)):
        pass


def test_models_that_no_llama_body_computes_are_refused(small):
    config, body = read_config(small), body_of()
    biased = replace(config, family=replace(config.family, name="qwen2", has_qkv_bias=True))
    with pytest.raises(ConfigError, match="qwen2 has them; use a Llama"):
        fit(biased, body.config, name=body.name)


def test_a_layer_at_a_time_is_written_with_what_text_needs(small, tmp_path):
    folder = shutil.copytree(small, tmp_path / "small")
    (folder / "tokenizer_config.json").write_text("{}")
    size = write_widened(folder, body_of(), tmp_path / "wide", heads=(), dtype="bfloat16")
    names = {path.name for path in (tmp_path / "wide").iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer_config.json"} <= names
    index = json.loads((tmp_path / "wide" / "model.safetensors.index.json").read_text())
    layers = {file for name, file in index["weight_map"].items() if ".layers.4." in name}
    assert len(layers) == 1
    assert len(set(index["weight_map"].values())) == 9 + 3
    assert index["metadata"]["total_size"] == size
    decoder = load_decoder(tmp_path / "wide", dtype="bfloat16", device=CPU)
    assert {each.storage for each in decoder.storage if each.modules != "embed_tokens"} == {
        "bfloat16"
    }
    with Checkpoint(tmp_path / "wide") as checkpoint:
        assert checkpoint.read("model.norm.weight").dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="exists already"):
        write_widened(small, body_of(), tmp_path / "wide", heads=(), dtype="bfloat16")


def test_files_written_by_many_workers_have_the_bytes_of_tensors_made_one_by_one(small, tmp_path):
    threads = torch.get_num_threads()
    write_widened(small, body_of(), tmp_path / "wide", heads=(), dtype="bfloat16")
    assert torch.get_num_threads() == threads
    index = json.loads((tmp_path / "wide" / "model.safetensors.index.json").read_text())
    names_of: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        names_of.setdefault(file, []).append(name)
    with opened(small, body_of(), ()) as models:
        source = WideTensors(models.fit, models.source, Noise(torch.bfloat16, CPU))
        for file, names in names_of.items():
            one_by_one = save({name: source.read(name) for name in names}, {"format": "pt"})
            assert (tmp_path / "wide" / file).read_bytes() == one_by_one


def test_rows_are_replaced_as_soon_as_they_end_and_every_round_is_counted(small, tmp_path):
    model = load_decoder(small, dtype="float32", device=CPU)
    head_folder = write_head(tmp_path / "head", model.config, seed=2)
    head = load_head(head_folder, target=model, target_folder=small, dtype="float32", device=CPU)
    engine = engine_of(model, Shape(page_size=4, max_rows=2), ModelDraft(model=head, budget=CHAIN))
    questions = WidenedQuestions(
        prompts=tuple(tuple(prompt(4 + seed, seed)) for seed in range(3)),
        limits=Limits(max_tokens=7, stop_ids=frozenset()),
    )
    answering = AnsweringRows(engine, questions, rows=2)
    while len(answering.answers) < 3:
        answering.step()
        assert len(answering.live) == 2
    rounds_emitted = (
        answering.emitted - answering.num_begun
    )  # an answer's first token comes of its prompt
    assert answering.rounds <= rounds_emitted <= answering.rounds + answering.accepted
    assert all(len(tokens) == 7 for tokens in answering.answers.values())
    plain = engine_of(model, Shape(page_size=4))
    outputs = run_all(
        plain,
        [
            make_submission(str(index), list(tokens), SAMPLINGS["greedy"], max_tokens=7)
            for index, tokens in enumerate(questions.prompts)
        ],
    )
    assert answering.answers == {int(name): tuple(each.tokens) for name, each in outputs.items()}
    answering.end()
    assert not engine.has_work


def test_few_rows_are_timed_over_as_many_answers_as_eight():
    questions = WidenedQuestions(
        prompts=((1,),), limits=Limits(max_tokens=10, stop_ids=frozenset())
    )
    assert [window_tokens(questions, rows=rows) for rows in (1, 8, 32)] == [80, 80, 320]


def test_only_answers_that_both_finished_are_compared():
    assert count_equal({0: (1,), 1: (2,), 2: (3,)}, {1: (2,), 2: (4,), 3: (5,)}) == (1, 2)


def test_the_command_writes_a_model_and_its_head(tiny_folder, tmp_path):
    head = write_head(tmp_path / "head", read_config(tiny_folder))
    out = tmp_path / "out"
    flags = ["--model", str(tiny_folder), "--body", "tiny", "--dtype", "float32"]
    done = CliRunner().invoke(app, ["widen", *flags, "--draft", str(head), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "in the shapes of tiny" in done.output
    wide = load_decoder(out, dtype="float32", device=CPU)
    assert wide.config.block.hidden == find_body("tiny").config.block.hidden
    load_head(out / HEAD_FOLDER, target=wide, target_folder=out, dtype="float32", device=CPU)


@pytest.mark.slow
def test_iterations_of_a_widened_model_answer_real_questions(tiny_folder, tmp_path):
    head = write_head(tmp_path / "head", read_config(tiny_folder), seed=2)
    questions = tmp_path / "questions.jsonl"
    texts = ["how many", "why", "please explain this", "tell me"]
    questions.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    flags = ["--widened", str(tiny_folder), "--draft", str(head), "--prompts", str(questions)]
    place = ["--body", "tiny", "--dtype", "float32", "--device", "cpu", "--rows", "1,3"]
    trees = ["--tree", "2", "--tree", "2x2x4", "--max-tokens", "6"]
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["iteration", *flags, *place, *trees, "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 100
    outcomes = json.loads(target.read_text())["outcomes"]
    ways = ["plain", "chain of 2", "2 x 2, 4 nodes"]
    assert [(each["way"], each["rows"]) for each in outcomes] == [
        (way, rows) for way in ways for rows in (1, 3)
    ]
    for each in outcomes:
        assert each["emitted"] >= 48
        assert each["equal_answers"] == each["answers_of_both"] > 0
        assert each["accept_length"] == pytest.approx(1 + each["kept"] / each["rounds"])
    plain = outcomes[:2]
    assert [each["accept_length"] for each in plain] == [1.0, 1.0]
    for index, each in enumerate(outcomes):
        expected = each["tokens_per_s"] / plain[index % 2]["tokens_per_s"]
        assert each["speedup"] == pytest.approx(expected)


NEEDS_MORE = ["iteration", "--widened", "x"]
WRONG = [
    (["widen", "--out", "x", "--body", "llama-9b"], "unknown body 'llama-9b'"),
    (["widen", "--out", "x", "--draft", "ngram"], "no weights to widen"),
    (["widen", "--out", "x", "--model", "/no/such"], "/no/such"),
    (NEEDS_MORE, "--prompts"),
    ([*NEEDS_MORE, "--prompts", "/no/such.jsonl"], "/no/such.jsonl"),
    ([*NEEDS_MORE, "--prompts", "x", "--tree", "4y4"], "--tree 4y4"),
    ([*NEEDS_MORE, "--prompts", "x", "--tree", "2x1x9"], "--tree 2x1x9"),
    ([*NEEDS_MORE, "--topk", "4"], "--tree"),
    ([*NEEDS_MORE, "--tokens", "128"], "--max-tokens bounds the answers"),
    ([*NEEDS_MORE, "--with-plain"], "do not go with --widened"),
    (["iteration", "--draft", "x"], "go with --widened"),
    (["iteration", "--tree", "4"], "go with --widened"),
]


@pytest.mark.parametrize(("flags", "reason"), WRONG, ids=[" ".join(each[0]) for each in WRONG])
def test_a_wrong_flag_is_answered_with_one_line(flags, reason, capsys):
    assert run([*flags]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert reason in shown.err
