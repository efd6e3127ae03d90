"""The decoder against transformers, family by family, through real plans."""

import random
from dataclasses import dataclass

import pytest
import torch
from support.steps import NO_WARPS, SmallDevice, batch_of, small_device
from support.tiny import FAMILIES, VOCAB, save_tiny
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.memory.pool import KVLayout, KVPool
from outrider.models.decoder import Decoder
from outrider.models.loader import load_decoder
from outrider.spec.drafter import single_node
from outrider.step.fill import fill, resolve_lengths
from outrider.step.tape import TapeExecutor

CPU = torch.device("cpu")
PAGE_SIZE = 4
TOLERANCE = 1e-4  # largest difference of any logit, in float32
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass
class Harness:
    """A decoder with its own pool and planner; `run` is one step of it."""

    decoder: Decoder
    device: SmallDevice
    pool: KVPool

    def run(self, decodes, chunks, execute=lambda program, plan: program(plan)):
        """Logits of every query token; decodes are {row: (length, token)}."""
        table = self.device.table
        for row, (length, token) in decodes.items():
            table.lengths[row], table.last_tokens[row] = length, token
        lengths = {row: length for row, (length, _) in decodes.items()}
        batch = batch_of(lengths, chunks, nodes=1)
        plan = self.device.planner.plan(batch, warps=NO_WARPS)
        with torch.inference_mode():
            return execute(self.program, plan)

    def program(self, plan):
        device = self.device
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.uniform.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=device.page_size)
        hidden = self.decoder.hidden(plan, self.pool, device.attention)
        return self.decoder.logits(hidden)


def harness_of(folder, dtype="float32"):
    decoder = load_decoder(folder, dtype=dtype, device=CPU)
    device = small_device(random.Random(0), page_size=PAGE_SIZE, nodes=1)
    attention = decoder.config.attention
    layout = KVLayout(
        layers=decoder.config.num_layers,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        page_size=PAGE_SIZE,
        dtype=decoder.dtype,
    )
    return Harness(decoder, device, KVPool(layout, num_pages=device.num_pages, device=CPU))


def prompt(length, seed=0):
    return random.Random(seed).choices(range(VOCAB), k=length)


def expected_logits(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def small_llama(**changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": VOCAB}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **changes)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_logits_equal_those_of_transformers(family, tmp_path):
    model = save_tiny(family, tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [{"head_dim": 20}, {"rope_parameters": YARN, "max_position_embeddings": 256}],
    ids=["head_dim", "yarn"],
)
def test_llama_settings_off_the_beaten_path_equal_transformers(changes, tmp_path):
    model = small_llama(**changes)
    model.save_pretrained(tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
def test_decoding_after_a_prompt_equals_running_it_whole(num_rows, tmp_path):
    model = save_tiny("qwen3", tmp_path)
    harness = harness_of(tmp_path)
    prompts = {row: prompt(6 + row, seed=row) for row in range(1, num_rows + 1)}
    for row, tokens in prompts.items():
        harness.run({}, {row: (0, tokens[:-1])})
    logits = harness.run({row: (len(t) - 1, t[-1]) for row, t in prompts.items()}, {})
    for tokens, ours in zip(prompts.values(), logits, strict=True):
        assert (ours - expected_logits(model, tokens)[-1]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_forward_pass_replays_from_a_tape(dtype, tmp_path):
    save_tiny("qwen2", tmp_path)
    tape, eager, taped = TapeExecutor(), harness_of(tmp_path, dtype), harness_of(tmp_path, dtype)
    for seed in (1, 2):
        tokens = prompt(7, seed)
        expected = eager.run({}, {1: (0, tokens)})
        assert torch.equal(taped.run({}, {1: (0, tokens)}, tape.run), expected)


def test_int8_logits_follow_those_of_float32(tmp_path):
    small_llama().save_pretrained(tmp_path)
    tokens = prompt(33)
    exact = harness_of(tmp_path).run({}, {1: (0, tokens)})
    rounded = harness_of(tmp_path, "int8").run({}, {1: (0, tokens)})
    assert (rounded - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("num_others", [1, 4])
def test_logits_of_a_row_do_not_depend_on_its_batch_mates(num_others, dtype, tmp_path):
    save_tiny("llama", tmp_path)
    rows = {row: (0, token) for row, token in enumerate(prompt(num_others + 1), start=1)}
    alone = harness_of(tmp_path, dtype).run({1: rows[1]}, {})
    together = harness_of(tmp_path, dtype).run(rows, {})
    assert torch.equal(together[0], alone[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_follow_those_of_float32(dtype, tmp_path):
    small_llama().save_pretrained(tmp_path)
    tokens = prompt(9)
    exact = harness_of(tmp_path).run({}, {1: (0, tokens)})
    rounded = harness_of(tmp_path, dtype).run({}, {1: (0, tokens)})
    assert (rounded - exact).norm() <= 0.03 * exact.norm()
