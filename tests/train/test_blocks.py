"""`outrider train dflash` and `dspark`: the training form of blocks, and heads that draft."""

import itertools
import json
import random

import pytest
import torch
from safetensors.torch import load_file
from support.block_heads import BlockOracle, BlockVariant, write_block_head
from support.tiny import save_tiny
from support.training import DEVICE, interrupt_in_step

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.models.eagle.inspect_head import open_head
from outrider.models.model_config import read_config
from outrider.train.batches import AnchorChoice, make_batch
from outrider.train.checkpoints import list_checkpoints, load_checkpoint
from outrider.train.documents import Document
from outrider.train.packed_attention import DenseAttention
from outrider.train.packed_target import PackedTarget
from outrider.train.packing import pack_documents
from outrider.train.training_block import TrainingBlock
from outrider.train.training_head import HeadInputs

VARIANTS = {
    "dflash": BlockVariant(has_mask_vector=True),
    "causal": BlockVariant(has_mask_vector=True, is_causal=True),
    "dspark": BlockVariant(
        has_mask_vector=True, is_next=True, markov_rank=6, has_confidence=True, reads_token=True
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_in_training_are_those_of_the_engine(tmp_path, name):
    """Both are compared with one reference; the engine's form is in test_block_proposals.py."""
    variant, draw = VARIANTS[name], random.Random(4)
    theirs = save_tiny("llama", tmp_path / "model")
    target = PackedTarget(tmp_path / "model", DEVICE)
    weights = write_block_head(tmp_path / "head", target.config, variant)
    opened = open_head(tmp_path / "head", target.config, tmp_path / "model")
    texts = [[draw.randrange(67) for _ in range(length)] for length in (19, 15)]
    documents = [
        Document(
            id=str(i),
            source="",
            tokens=tuple(text),
            answers=((4, len(text)),),
            temperature=0.0,
            seed=0,
        )
        for i, text in enumerate(texts)
    ]
    packed = pack_documents(documents, length=40, seed=0)
    depth, choice = variant.num_drafts, AnchorChoice(num=6, seed=(1,))
    batch = make_batch(packed, depth=depth, device=DEVICE, choice=choice)
    states = target.forward(
        batch.tokens, batch.positions, DenseAttention(batch.documents), variant.layers
    )
    inputs = HeadInputs(
        aux_hidden_states=states.aux_hidden_states,
        tokens=batch.tokens,
        documents=batch.documents,
        positions=batch.positions,
        attention=DenseAttention(batch.documents),
    )
    head = TrainingBlock(opened.report.config, target, DEVICE)
    oracle = BlockOracle(theirs, variant, weights)
    with torch.no_grad():
        drafts = list(head.draft_logits(weights, inputs, batch.anchors, depth=depth))
        logits = [each.tokens for each in drafts]
        for step, row in itertools.product(range(depth), range(len(logits[0]))):
            if row >= len(logits[step]):
                continue
            place = int(batch.anchors.rows[step][row])
            number, position = int(batch.documents[0, place]), int(batch.positions[0, place])
            text = next(each for each in texts if each[:6] == _tokens(batch, number)[:6])
            before = text[position + 1 + step]
            right = oracle.slot_logits(text[: position + 2], step, before)
            assert (logits[step][row] - right).abs().max() < 1e-4
            if variant.has_confidence:
                state = oracle.run_block(text[: position + 2])[step]
                read = torch.cat([state, weights["markov_head.markov_w1.weight"][before]])
                chance = weights["confidence_head.proj.weight"][0] @ read
                chance = chance + weights["confidence_head.proj.bias"][0]
                assert abs(drafts[step].confidence[row, 0] - chance) < 1e-4


def _tokens(batch, number):
    return batch.tokens[0][batch.documents[0] == number].tolist()


def accept_length(target_folder, head):
    draw = random.Random(1)
    prompts = [draw.choices(range(3, 67), k=draw.randint(2, 8)) for _ in range(16)]
    chain = {"draft": head, "topk": 1, "adaptive": False, "draft_dtype": "target"}
    chain["check_draft"] = False
    llm = LLM(target_folder, dtype="float32", device="cpu", **chain)
    params = SamplingParams(temperature=0.0, max_tokens=24, detokenize=False)
    found = [each.outputs[0].acceptance for each in llm.generate(prompts, params, use_tqdm=False)]
    return 1 + sum(each.kept for each in found) / sum(each.rounds for each in found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        ("dflash", "--anchors 24 --layers 1 --block 4"),
        ("dspark", "--anchors 24 --layers 1 --block 3 --markov-rank 16"),
        ("peagle", "--layers 2 --depth 4 --draft-vocab 60 --head-frozen 0 --head-lr 1"),
    ],
)
def test_a_trained_head_drafts_better_than_a_random_one(
    target_folder, prompts_file, tmp_path, algorithm, flags
):
    out = tmp_path / "out"
    where = ["--model", target_folder, "--prompts", prompts_file, "--out", out]
    sizes = "--device cpu --length 80 --batch 8 --answer-tokens 32 --steps 100"
    pace = "--lr 1e-2 --log-every 10 --eval-every 60 --save-every 50 --dtype float32"
    command = ["train", algorithm, *map(str, where), *f"{sizes} {pace} {flags}".split()]
    assert run(command) == 0
    config = open_head(out / "head", read_config(target_folder), target_folder).report.config
    assert config.origin.algorithm == algorithm
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    if algorithm == "dspark":  # a mean over 24 anchors of each of 8 sequences, for every depth
        estimates = zip(lines[-2]["confidence"], lines[-2]["overlap"], strict=True)
        assert all(abs(chance - share) < 0.1 for chance, share in estimates)
    variant = BlockVariant(size=4, num_layers=1, has_mask_vector=True)
    write_block_head(tmp_path / "random", read_config(target_folder), variant)
    untrained = accept_length(target_folder, tmp_path / "random")
    assert accept_length(target_folder, out / "head") > untrained + 0.4


@pytest.fixture(scope="module")
def answers(target_folder, prompts_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    where = ["--model", target_folder, "--prompts", prompts_file, "--out", path]
    flags = "--device cpu --answer-tokens 24 --length 80 --temperatures 0"
    assert run(["train", "answers", *map(str, where), *flags.split()]) == 0
    return path


RESUMED = {
    "dflash": "--anchors 8 --layers 1 --block 4",
    "dspark": "--anchors 8 --layers 1 --block 3 --markov-rank 8",
    "peagle": "--layers 2 --depth 3 --draft-vocab 60 --head-frozen 0.2",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", RESUMED)
def test_a_resumed_run_ends_with_the_same_weights_as_an_uninterrupted_one(
    target_folder, answers, tmp_path, monkeypatch, capsys, algorithm
):
    """The blocks that a step trains follow from its number, so both train the same ones."""

    def train(out, *more):
        where = ["--model", target_folder, "--answers", answers, "--out", tmp_path / out]
        pace = "--device cpu --length 80 --batch 2 --steps 12 --log-every 4 --dtype float32"
        flags = [*map(str, where), *f"{pace} {RESUMED[algorithm]}".split(), *more]
        return run(["train", algorithm, *flags])

    assert train("whole") == 0
    interrupt_in_step(monkeypatch, 6)
    assert train("parts") == 130
    (found,) = list_checkpoints(tmp_path / "parts" / "checkpoints")
    assert load_checkpoint(found).step == 7
    assert train("parts", "--resume", "--layers", "3") == 1
    assert "num_hidden_layers" in capsys.readouterr().err
    assert train("parts", "--resume") == 0
    one, other = (
        load_file(tmp_path / out / "head/model.safetensors") for out in ("whole", "parts")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)  # bit for bit
