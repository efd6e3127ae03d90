"""`outrider train eagle3`: from prompts to a head that drafts, and the ways a run can stop."""

import json
import random
import resource
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.heads import write_head
from support.tiny import save_tiny
from support.training import DEVICE, interrupt_in_step

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError
from outrider.models.eagle.inspect_head import open_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.model_config import read_config
from outrider.train import start_training, training_loop
from outrider.train.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from outrider.train.documents import read_documents
from outrider.train.initial_head import InitialHead
from outrider.train.packed_attention import DenseAttention
from outrider.train.packed_target import PackedTarget
from outrider.train.training_head import HeadInputs, TrainingHead

STEPS = 4  # of a draft chain

# A training run uses all cores, and waits where they are busy.
pytestmark = pytest.mark.timeout(600)


def acceptances(target_folder, head, prompts, *, temperature=0.0, max_tokens=24):
    """The acceptance of every answer, measured through the engine."""
    # By default a head has 8 bits on a CPU, which the training form has not.
    chain = {"draft": head, "steps": STEPS, "topk": 1, "adaptive": False, "draft_dtype": "target"}
    llm = LLM(target_folder, dtype="float32", device="cpu", **chain)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=1, detokenize=False
    )
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].acceptance for output in outputs]


def accept_length(target_folder, head, *, temperature):
    """Mean tokens per round on prompts that no head was trained on."""
    draw = random.Random(1)
    prompts = [draw.choices(range(3, 67), k=draw.randint(2, 8)) for _ in range(16)]
    found = acceptances(target_folder, head, prompts, temperature=temperature)
    return 1 + sum(each.kept for each in found) / sum(each.rounds for each in found)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trained_head_has_a_higher_accept_length_than_an_untrained_one(
    trained, target_folder, tmp_path, temperature
):
    untrained = write_head(tmp_path / "head", read_config(target_folder), dialect="sglang")
    before = accept_length(target_folder, untrained, temperature=temperature)
    after = accept_length(target_folder, trained / "head", temperature=temperature)
    assert before < 1.5
    assert after > before + 0.5


def simulate_rounds(is_right, *, first, num_tokens):
    """The draft rounds of a chain over a greedy answer.

    `is_right[k][t]`: the draft of row t for the token at t + 2 + k is right. The answer begins at
    `first`, whose token the prompt itself yields.
    """
    rounds, accepted_per_position = 0, [0] * STEPS
    done = 1
    while done < num_tokens:
        row = first + done - 2  # it reads the last emitted token
        accepted = next((k for k in range(STEPS) if not is_right[k][row]), STEPS)
        emitted = min(accepted + 1, num_tokens - done)
        for position in range(min(accepted, emitted)):
            accepted_per_position[position] += 1
        rounds, done = rounds + 1, done + emitted
    return rounds, accepted_per_position


@pytest.mark.slow
def test_the_training_form_predicts_every_draft_round_of_the_engine(trained, target_folder):
    documents = read_documents(trained / "answers.jsonl")
    greedy = [each for each in documents if each.temperature == 0 and each.num_answer_tokens == 32][
        :8
    ]
    assert len(greedy) == 8
    num_tokens = 32 - STEPS  # the text must continue past the last draft
    prompts = [list(each.tokens[: each.answers[0][0]]) for each in greedy]
    found = acceptances(target_folder, trained / "head", prompts, max_tokens=num_tokens)
    for each, acceptance in zip(greedy, found, strict=True):
        drafts = unrolled_head(trained / "head", target_folder, each.tokens)
        tokens = torch.tensor(each.tokens)
        is_right = [(drafts[k] == tokens.roll(-2 - k)).tolist() for k in range(STEPS)]
        rounds, accepted = simulate_rounds(
            is_right, first=each.answers[0][0], num_tokens=num_tokens
        )
        assert acceptance.rounds == rounds
        assert acceptance.kept_per_position == accepted[: len(acceptance.kept_per_position)]
    assert sum(each.kept for each in found) > 20  # there was something to compare


def unrolled_head(folder, target_folder, tokens):
    """The head's greedy draft of every row at every depth: [depth, length] ids of the target."""
    target = PackedTarget(target_folder, DEVICE)
    opened = open_head(folder, target.config, target_folder)
    row, positions = torch.tensor([tokens]), torch.arange(len(tokens))[None]
    attention = DenseAttention(torch.zeros_like(row))
    config = opened.report.config
    states = target.forward(row, positions, attention, config.aux.aux_layers.layers)
    inputs = HeadInputs(
        aux_hidden_states=states.aux_hidden_states,
        tokens=row,
        documents=torch.zeros_like(row),
        positions=positions,
        attention=attention,
    )
    ids = target_ids(opened.tensors, config.output)
    normed = TrainingHead(config, DEVICE, embedding=target.embedding).unroll(
        opened.tensors, inputs, depth=STEPS
    )
    scores = [each[0] @ opened.tensors["lm_head.weight"].T for each in normed]
    return [ids[each.argmax(-1)] for each in scores]


@pytest.mark.slow
def test_answers_have_both_temperatures_and_greedy_ones_match_the_engine(trained, target_folder):
    documents = read_documents(trained / "answers.jsonl")
    assert {each.temperature for each in documents} == {0.0, 0.8}
    assert len(documents) == 2 * 60
    greedy = [each for each in documents if each.temperature == 0][:4]
    llm = LLM(target_folder, draft="none", device="cpu")
    for each in greedy:
        ((start, stop),) = each.answers
        params = SamplingParams(temperature=0.0, max_tokens=stop - start, detokenize=False)
        (output,) = llm.generate([list(each.tokens[:start])], params, use_tqdm=False)
        assert tuple(output.outputs[0].token_ids) == each.tokens[start:]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_same_weights_as_an_uninterrupted_one(
    train, trained, tmp_path, capsys, monkeypatch, optimizer
):
    answers = f"--answers {trained / 'answers.jsonl'} --steps 24 --batch 2 --optimizer {optimizer}"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(whole, answers) == 0
    interrupt_in_step(monkeypatch, 14)
    assert train(parts, answers) == 130
    assert "go on with --resume" in capsys.readouterr().err
    (found,) = list_checkpoints(parts / "checkpoints")
    assert load_checkpoint(found).step == 15  # the step was not cut short
    assert train(parts, answers) == 1  # --resume is missing
    assert "go on with --resume or use another --out" in capsys.readouterr().err
    assert train(parts, f"{answers} --resume") == 0
    one, other = (load_file(each / "head" / "model.safetensors") for each in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)  # bit for bit
    steps = [line["step"] for line in metrics_of(parts) if line["kind"] == "train"]
    assert steps == sorted(set(steps))
    assert train(parts, f"{answers} --resume") == 0  # there is nothing left to do


@pytest.mark.slow
def test_resuming_with_another_learning_rate_is_refused(train, trained, capsys):
    assert train(trained, "--steps 100 --resume --lr 1e-4") == 1
    assert "the run was begun with peak 0.02" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_the_last_checkpoint_stays(
    train, trained, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out"
    flags = f"--answers {trained / 'answers.jsonl'} --steps 30 --save-every 10 --batch 2"

    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_and_fill_disk(*arguments):
        saved = save_checkpoint(*arguments)
        most_bytes = 20_000  # every checkpoint is larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
        return saved

    monkeypatch.setattr(training_loop, "save_checkpoint", save_and_fill_disk)
    try:
        code = train(out, flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    error = capsys.readouterr().err
    assert "make room and go on with --resume" in error
    (last,) = list_checkpoints(out / "checkpoints")
    assert str(last) in error
    assert load_checkpoint(last).step == 10


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_checkpoint(
    train, trained, tmp_path, capsys
):
    out = tmp_path / "out"
    flags = (
        f"--answers {trained / 'answers.jsonl'} --steps 40 --batch 2 --save-every 1 --log-every 1"
    )
    assert train(out, f"{flags} --lr 1e38 --warmup 1") == 1
    error = capsys.readouterr().err
    assert "not finite" in error or "the loss is" in error
    assert "lower --lr" in error
    for path in list_checkpoints(out / "checkpoints"):
        assert all(each.isfinite().all() for each in load_checkpoint(path).state_dict.values())


@pytest.mark.slow
def test_a_time_budget_limits_the_number_of_steps(train, trained, tmp_path, capsys):
    flags = f"--answers {trained / 'answers.jsonl'} --steps 100000 --budget-s 0.5 --batch 2"
    assert train(tmp_path / "out", flags) == 0
    assert "of 0.5 s" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guess", "budget_s", "least", "most"), [(2, 600, 9, 9), (9000, 1, 1, 8999)]
)
def test_a_run_plans_again_when_its_trial_was_wrong(
    train, trained, tmp_path, monkeypatch, guess, budget_s, least, most
):
    monkeypatch.setattr(start_training, "steps_within", lambda *_: guess)
    wanted = 9 if guess < 9 else 10**6
    flags = f"--answers {trained / 'answers.jsonl'} --steps {wanted} --batch 2 --log-every 1"
    assert train(tmp_path / "out", f"{flags} --budget-s {budget_s}") == 0
    assert least <= metrics_of(tmp_path / "out")[-1]["step"] <= most


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["", "--budget-s 500"])
def test_kept_states_of_the_target_change_no_weight(train, trained, tmp_path, capsys, budget):
    flags = f"--answers {trained / 'answers.jsonl'} --steps 12 --batch 2 --length 160 {budget}"
    assert train(tmp_path / "plain", flags) == 0
    assert train(tmp_path / "kept", f"{flags} --cache-gb 0.1") == 0
    assert "sequences are kept" in capsys.readouterr().err
    plain, kept = (
        load_file(tmp_path / run / "head" / "model.safetensors") for run in ("plain", "kept")
    )
    assert all(torch.equal(plain[name], kept[name]) for name in plain)


@pytest.mark.slow
def test_a_run_begins_with_the_weights_and_the_tokens_of_another_head(train, trained, tmp_path):
    out = tmp_path / "out"
    flags = f"--answers {trained / 'answers.jsonl'} --steps 1 --lr 1e-9 --log-every 1"
    assert train(out, f"{flags} --init-from {trained / 'head'}") == 0
    before, after = (load_file(run / "head" / "model.safetensors") for run in (trained, out))
    assert torch.equal(before["d2t"], after["d2t"])
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert metrics_of(out)[0]["agreement"][0] > 0.5


@pytest.mark.slow
def test_a_head_of_other_sizes_is_no_start(train, trained, tmp_path, capsys):
    flags = f"--answers {trained / 'answers.jsonl'} --init-from {trained / 'head'}"
    assert train(tmp_path / "out", f"{flags} --draft-vocab 40") == 1
    assert "use the flags with which it was trained" in capsys.readouterr().err


def test_a_head_with_its_own_embedding_is_no_start(target_folder, tmp_path):
    target = read_config(target_folder)
    own = write_head(tmp_path / "head", target, dialect="sglang", own_embedding=True)
    config = open_head(own, target, target_folder).report.config
    with pytest.raises(ConfigError, match=r"its own embed_tokens.weight"):
        InitialHead(own, config, target, target_folder)


def test_what_differs_from_a_head_is_named_in_one_short_line(target_folder, tmp_path):
    target = read_config(target_folder)
    head = write_head(tmp_path / "head", target)
    config = open_head(head, target, target_folder).report.config
    own = config.layer.block
    others = {
        "number of layers is 1, and these flags give 2": replace(
            config, layer=replace(config.layer, windows=config.layer.windows * 2)
        ),
        f"layer.block.intermediate is {own.intermediate}, and these flags give 8": replace(
            config, layer=replace(config.layer, block=replace(own, intermediate=8))
        ),
    }
    for words, other in others.items():
        with pytest.raises(ConfigError, match=words):
            InitialHead(head, other, target, target_folder)


def test_too_few_prompts_are_refused(target_folder, tmp_path, capsys):
    prompts = tmp_path / "few.jsonl"
    prompts.write_text('{"prompt_token_ids": [3, 4]}\n' * 3)
    where = ["--model", str(target_folder), "--prompts", str(prompts), "--out", str(tmp_path / "o")]
    assert run(["train", "eagle3", *where, "--draft-vocab", "60"]) == 1
    assert "training needs at least 8" in capsys.readouterr().err


def test_a_target_with_too_few_layers_for_the_aux_layers_is_refused(
    train, prompts_file, tmp_path, capsys
):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 67}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).save_pretrained(tmp_path / "m")
    assert train(tmp_path / "out", f"--model {tmp_path / 'm'}") == 1
    assert "the target has 2 layers" in capsys.readouterr().err


def test_a_vocabulary_larger_than_the_targets_is_refused_before_it_answers(train, tmp_path, capsys):
    assert train(tmp_path / "out", "--draft-vocab 68") == 1
    assert "--draft-vocab 68 exceeds" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--epochs -1", "--epochs 0", "--lr nan", "--lr -0.1"])
def test_numbers_that_train_nothing_are_refused(train, trained, tmp_path, capsys, flag):
    assert train(tmp_path / "out", f"--answers {trained / 'answers.jsonl'} {flag}") == 1
    assert f"{flag.split()[0]} must be a number above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_too_few_answers_for_one_batch_are_refused(train, trained, tmp_path, capsys):
    flags = f"--answers {trained / 'answers.jsonl'} --batch 1000"
    assert train(tmp_path / "out", flags) == 1
    assert "lower --batch or --length" in capsys.readouterr().err


@pytest.mark.slow
def test_both_export_formats_load_and_have_equal_accept_lengths(
    trained, target_folder, tmp_path, capsys
):
    (*_, last) = list_checkpoints(trained / "checkpoints")
    lengths = []
    for layout in ("eagle3", "speculators"):
        out = tmp_path / layout
        command = ["train", "export", str(last), "--out", str(out), "--format", layout]
        assert run([*command, "--dtype", "float16"]) == 0
        doctor = ["doctor", str(out), "--model", str(target_folder), "--no-probe"]
        assert run(doctor) == 0
        assert "the head fits" in capsys.readouterr().out
        lengths.append(accept_length(target_folder, out, temperature=0.0))
    assert lengths[0] == lengths[1]
    fields = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert fields["architectures"] == ["LlamaForCausalLMEagle3"]
    names = load_file(tmp_path / "eagle3" / "model.safetensors").keys()
    assert {"fc.weight", "midlayer.hidden_norm.weight", "norm.weight", "d2t", "t2d"} <= names
    assert "embed_tokens.weight" not in names  # it is the target's


@pytest.mark.slow
def test_a_head_of_layout_eagle3_1_learns_with_the_lk_loss(train, trained, target_folder, tmp_path):
    flags = f"--answers {trained / 'answers.jsonl'} --steps 40 --layout eagle3.1 --loss lk"
    assert train(tmp_path / "out", flags) == 0
    assert accept_length(target_folder, tmp_path / "out" / "head", temperature=0.0) > 1.5


@pytest.mark.slow
def test_plotting_without_matplotlib_names_the_extra_to_install(trained, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["train", "plot", str(trained)]) == 1
    assert install_hint("train") in capsys.readouterr().err


@pytest.mark.slow
def test_a_head_for_qwen3_is_trained_and_exported(train, tmp_path):
    save_tiny("qwen3", tmp_path / "qwen3")
    flags = f"--model {tmp_path / 'qwen3'} --steps 2 --answer-tokens 8"
    assert train(tmp_path / "out", flags) == 0
    assert (tmp_path / "out" / "head" / "model.safetensors").is_file()
