"""Training on a device: compiled attention against the written-down one, and a whole run."""

import json

import pytest
import torch
from support.tiny import save_tiny

from outrider.cli.main import run
from outrider.train.packed_attention import DenseAttention, FlexAttention, KeyValue, attend_packed

SHAPE = (2, 9, 384, 64)  # batch, heads, length, head_dim: blocks of 128, documents across them


def gradients(attention, tensors):
    query, key, value, *rest = leaves = [each.clone().requires_grad_() for each in tensors]
    later = [KeyValue(key=k, value=v) for k, v in zip(rest[::2], rest[1::2], strict=True)]
    read = attend_packed(attention, query, KeyValue(key=key, value=value), later)
    read.square().sum().backward()
    return read.detach(), [each.grad for each in leaves]


@pytest.mark.parametrize("num_later", [0, 3])
def test_flex_attention_and_its_gradients_are_those_of_the_reference(num_later):
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = [
        torch.randn(SHAPE, generator=generator, device="cuda") for _ in range(3 + 2 * num_later)
    ]
    lengths = torch.tensor([[50, 200, 100, 34], [1, 130, 250, 3]])
    documents = torch.stack([torch.arange(4).repeat_interleave(each) for each in lengths]).to(
        "cuda", torch.int32
    )
    expected, expected_grads = gradients(DenseAttention(documents), tensors)
    found, grads = gradients(FlexAttention(documents), tensors)
    assert (found - expected).abs().max() < 5e-3  # tf32 in the compiled products
    for ours, theirs in zip(grads, expected_grads, strict=True):
        assert (ours - theirs).abs().max() < 5e-2 * theirs.abs().max()


@pytest.mark.parametrize("kind", ["flex", "dense", "flex --compile --loss lk"])
def test_a_run_on_the_device_ends_in_a_head_that_fits(kind, tmp_path, capsys):
    save_tiny("qwen3", tmp_path / "target")  # its head_dim of 16 is the least that flex takes
    lines = [{"prompt_token_ids": [3 + i % 60, 4 + i % 50]} for i in range(64)]
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    where = ["--model", tmp_path / "target", "--prompts", prompts, "--out", tmp_path / "out"]
    sizes = "--device cuda --length 128 --batch 4 --steps 6 --draft-vocab 60 --answer-tokens 40"
    flags = f"{sizes} --log-every 2 --head-frozen 0 --attention {kind}".split()
    assert run(["train", "eagle3", *map(str, where), *flags]) == 0
    head, model = str(tmp_path / "out" / "head"), str(tmp_path / "target")
    assert run(["doctor", head, "--model", model, "--no-probe"]) == 0
    assert "the head fits" in capsys.readouterr().out
