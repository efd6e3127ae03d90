"""A rehearsal of the default recipe on a GPU without the model: speed of its steps by flags.

    python -m benchmarks.rehearse_training --seconds 100

The target has SmolLM2-135M's sizes and random weights, the head is the shipped one, and answers are
random tokens. Losses mean nothing here. Each setting that is out of time is left out.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from safetensors.torch import save_file

from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.shipped_heads import shipped_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.model_config import read_config
from outrider.models.safetensors_reader import Checkpoint
from outrider.train.batches import BatchOrder
from outrider.train.documents import Document
from outrider.train.head_design import design_config
from outrider.train.packing import pack_documents
from outrider.train.recipe import LearningRates, Recipe
from outrider.train.state_cache import make_state_cache
from outrider.train.trainer import HeadSpec, Trainer
from outrider.train.training_device import RequestedDevice, choose_training_device

_HIDDEN, _INTERMEDIATE, _LAYERS, _VOCAB, _KV = 576, 1536, 30, 49152, 192
_WARM, _TIMED, _SEQUENCES = 4, 20, 40 * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table."""

    name: str
    is_compiled: bool
    is_kept: bool
    depth: int = 6
    batch: int = 16


_SETTINGS = (
    Setting(name="compiled", is_compiled=True, is_kept=False),
    Setting(name="compiled, states kept", is_compiled=True, is_kept=True),
    Setting(name="plain", is_compiled=False, is_kept=False),
    Setting(name="plain, states kept", is_compiled=False, is_kept=True),
    Setting(name="compiled, states kept, depth 7", is_compiled=True, is_kept=True, depth=7),
    Setting(name="compiled, states kept, batch 8", is_compiled=True, is_kept=True, batch=8),
)


def main(
    seconds: Annotated[float, typer.Option(help="No setting is begun after it.")] = 100.0,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 1024,
) -> None:
    """Print steps a second, and what the device did in one of them."""
    end_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        target = write_target(Path(folder))
        documents = random_documents(max(_SEQUENCES * length // 341, _SEQUENCES))
        for setting in _SETTINGS:
            if time.monotonic() > end_s:
                print(f"{setting.name}: no time left")
                continue
            begin_s = time.monotonic()
            try:
                measure(setting, target, documents, device=device, length=length)
            except Exception as error:  # the other settings still tell something
                print(f"{setting.name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
            print(f"  {time.monotonic() - begin_s:.0f} s in all", flush=True)


def measure(
    setting: Setting, target: Path, documents: list[Document], *, device: str, length: int
) -> None:
    """Print steps a second after some warm ones, and the kernels that took longest."""
    requested = RequestedDevice(device=device, attention=None, is_compiled=setting.is_compiled)
    chosen = choose_training_device(requested, head_dim=64)
    chosen.free_memory()
    packed = pack_documents(documents, length=length, seed=0)
    order = BatchOrder(packed, size=setting.batch, seed=0)
    cache = make_state_cache(
        num=len(packed) if setting.is_kept else 0,
        length=length,
        hidden=_HIDDEN,
        num_aux=3,
        limit_gb=20.0,
        dtype=chosen.dtype,
        device=chosen.device,
    )
    recipe = Recipe(
        steps=1000, batch=setting.batch, depth=setting.depth, decay=0.8, loss="lk", seed=0
    )
    rates = LearningRates(
        peak=1e-3,
        warmup=0.02,
        floor=0.05,
        clip=1.0,
        scores=0.3,
        scores_frozen=0.0,
        optimizer="muon",
    )
    trainer = Trainer(head_spec(target), recipe, rates, chosen, cache)
    _steps(trainer, order, _WARM, first=_TIMED)
    if cache is not None:
        _steps(trainer, order, _TIMED, first=0)
    spent_s = _steps(trainer, order, _TIMED, first=0)
    print(f"{setting.name}: {_TIMED / spent_s:.1f} steps/s", flush=True)
    if device != "cpu":
        print(_profile(trainer, order))


def _steps(trainer: Trainer, order: BatchOrder, num: int, *, first: int) -> float:
    begin_s = time.monotonic()
    for step in range(first, first + num):
        numbers = order.numbers_at(step).tolist()
        loss = trainer.step(step, order.at(step), sequences=numbers)
    assert np.isfinite(float(loss)), "the loss is not finite"
    return time.monotonic() - begin_s


def _profile(trainer: Trainer, order: BatchOrder) -> str:
    """The kernels of two steps that took longest, and how busy the device was."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        spent_s = _steps(trainer, order, 2, first=0)
    kernels = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
    busy_ms = sum(each.self_device_time_total for each in kernels) / 2e3
    lines = [
        f"  device busy {busy_ms:.1f} ms of a step, {spent_s * 500:.1f} ms with the profiler on"
    ]
    lines += [
        f"  {each.self_device_time_total / 2e3:7.2f} ms {each.count // 2:5d}x {each.key[:90]}"
        for each in kernels[:14]
    ]
    memory = torch.cuda.max_memory_allocated() / 1e9
    return "\n".join([*lines, f"  {memory:.1f} GB at most"])


def head_spec(target: Path) -> HeadSpec:
    """The shipped head's sizes and draft vocabulary; its weights begin as for a new head."""
    head = shipped_head(DEFAULT_ALIAS)
    assert head is not None, "the default model has a head"
    fields = json.loads((head.folder / "config.json").read_text())
    config = design_config(fields, read_config(target))
    with Checkpoint(head.folder) as checkpoint:
        tensors = {"d2t": checkpoint.read("d2t")}
    return HeadSpec(target_folder=target, config=config, ids=target_ids(tensors, config.output))


def random_documents(num: int) -> list[Document]:
    """Lengths as of real answers: prompts of a quarter."""
    draw = np.random.default_rng(0)
    sizes = np.clip(draw.gamma(2.0, 170.0, num), 24, 1000).astype(int)
    return [
        Document(
            id=str(number),
            source="random",
            tokens=tuple(draw.integers(0, _VOCAB, size).tolist()),
            answers=((int(size) // 4, int(size)),),
            temperature=float(number % 2),
            seed=0,
        )
        for number, size in enumerate(sizes)
    ]


def write_target(folder: Path) -> Path:
    """A model of SmolLM2-135M's sizes with random weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "vocab_size": _VOCAB,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (_VOCAB, _HIDDEN), "model.norm.weight": (_HIDDEN,)}
    for layer in range(_LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer().items()}
    tensors = {
        name: torch.ones(shape)
        if "norm" in name
        else torch.randn(shape, generator=generator) * 0.04
        for name, shape in shapes.items()
    }
    halves = {name: each.to(torch.bfloat16) for name, each in tensors.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _layer() -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (_HIDDEN,),
        "post_attention_layernorm.weight": (_HIDDEN,),
        "self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj.weight": (_KV, _HIDDEN),
        "self_attn.v_proj.weight": (_KV, _HIDDEN),
        "self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
        "mlp.gate_proj.weight": (_INTERMEDIATE, _HIDDEN),
        "mlp.up_proj.weight": (_INTERMEDIATE, _HIDDEN),
        "mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
    }


if __name__ == "__main__":
    typer.run(main)
