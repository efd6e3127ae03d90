"""Tiny targets with random draft modules in their checkpoints, in the form of each family."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.decoder_tensors import block_shapes
from outrider.models.mtp import module_tables as tables
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.mtp.module_loader import load_modules
from outrider.models.mtp.module_tables import ModuleTable
from support.tiny import save_tiny

TABLES = {
    "mimo": tables.MIMO,
    "deepseek": tables.DEEPSEEK,
    "unchained": tables.MIMO_V2,
    "qwen3-next": tables.QWEN3_NEXT,
    "raw state": replace(
        tables.DEEPSEEK, rules=replace(tables.DEEPSEEK.rules, is_state_normed=False)
    ),
}


@dataclass(frozen=True)
class WithModules:
    """A target as a transformers model and as our decoder, and its draft modules."""

    theirs: Any
    folder: Path
    target: Decoder
    table: ModuleTable
    weights: list[dict[str, torch.Tensor]]  # of each module, by our own names

    def load(self, most: int = 8) -> ModuleChain:
        return load_modules(self.folder, target=self.target, most=most, dtype="float32")


def with_modules(
    folder: Path,
    table: ModuleTable,
    *,
    num: int,
    body: str = "qwen2",
    device: str = "cpu",
    seed: int = 0,
    is_bigram: bool = False,
) -> WithModules:
    """Save a tiny model of a family, with draft modules under the names of the table.

    `is_bigram`: the next token depends on the last token only, in the target and its modules.
    """
    theirs = save_tiny(body, folder)
    if is_bigram:
        remove_layer_outputs(folder)
    place = torch.device(device)
    plain = load_decoder(folder, dtype="float32", device=place)
    family = replace(plain.config.family, modules=table)
    target = Decoder(replace(plain.config, family=family), plain._parts)
    weights = [module_tensors(target, seed=seed + index) for index in range(num)]
    if is_bigram:
        weights = [_as_the_target(each, plain._parts.norm.weight) for each in weights]
    if table.prefix == tables.QWEN3_NEXT.prefix:  # all modules share these tensors
        shared = ("join", "token_norm", "state_norm", "output_norm")
        weights = [each | {name: weights[0][name] for name in shared} for each in weights]
    add_modules(folder, table, weights, num_layers=target.config.num_layers)
    return WithModules(theirs, folder, target, table, weights)


def write_mimo(folder: Path, *, num: int = 2) -> Path:
    """The folder of a tiny MiMo, in its published form."""
    save_tiny("qwen2", folder)
    edit_config(folder, architectures=["MiMoForCausalLM"], attention_bias=True)
    target = load_decoder(folder, dtype="float32", device=torch.device("cpu"))
    weights = [module_tensors(target, seed=index) for index in range(num)]
    add_modules(folder, tables.MIMO, weights, num_layers=target.config.num_layers)
    return folder


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def remove_layer_outputs(folder: Path) -> None:
    """Set the output projections of all layers to zero, so that layers change nothing."""
    stored = load_file(folder / "model.safetensors")
    for name, tensor in stored.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def _as_the_target(weights, final_norm) -> dict[str, torch.Tensor]:
    """A module that reads its token only, with the final norm of the target."""
    zeroed = {
        name: torch.zeros_like(tensor)
        for name, tensor in weights.items()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    }
    hidden = final_norm.shape[0]
    return (
        weights
        | zeroed
        | {
            "join": torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1),
            "token_norm": torch.ones(hidden),
            "output_norm": final_norm.cpu().clone(),
        }
    )


def add_modules(folder: Path, table: ModuleTable, weights, *, num_layers: int) -> None:
    """Add modules to a model folder."""
    stored = load_file(folder / "model.safetensors")
    for index, tensors in enumerate(weights):
        stored |= spelled(table, tensors, index, num_layers)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, **{table.counts[0]: len(weights)})


def spelled(table: ModuleTable, tensors, index: int, num_layers: int) -> dict[str, torch.Tensor]:
    """The tensors of a module under the stored names of the family."""
    prefix, block = table.places(index, num_layers)
    own = {
        "join": table.names.join,
        "token_norm": table.names.token_norm,
        "state_norm": table.names.state_norm,
        "output_norm": table.names.output_norm,
        "embedding": table.names.embedding,
        "head": table.names.head,
    }
    stored = {}
    for name, tensor in tensors.items():
        place = prefix + own[name] + ".weight" if name in own else block + name
        for ours, theirs in table.renamed:
            place = place.replace(ours, theirs)
        stored[place] = tensor.clone()
    return stored


def module_tensors(target: Decoder, *, seed: int) -> dict[str, torch.Tensor]:
    """Random weights of a module: its own by our names, its layer's by tensor names."""
    generator = torch.Generator().manual_seed(1000 + seed)
    config = target.config
    hidden = config.block.hidden
    shapes = {
        "join": (hidden, 2 * hidden),
        "token_norm": (hidden,),
        "state_norm": (hidden,),
        "output_norm": (hidden,),
    } | block_shapes(config.of_modules, layer=config.num_layers - 1, are_experts_stacked=False)
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }
