"""The models of the equality matrix with a quantised target, whose numbers transformers has."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.medusa.medusa_loader import load_medusa
from support import packed_folders as forms
from support.heads import write_head
from support.matrix import Models
from support.medusa_models import MedusaVariant, write_medusa
from support.modules import TABLES, with_modules
from support.packed_forms import FORMS, GROUPS
from support.tiny import SIZES, save_tiny

CPU = torch.device("cpu")


def pack_in_place(folder: Path, form: str) -> Path:
    """Quantise the projections of a saved folder; the folder with their numbers."""
    source, plain = (folder.with_name(f"{folder.name}-{end}") for end in ("source", "plain"))
    folder.rename(source)
    packer, config = (FORMS | GROUPS)[form]
    forms.write_packed(source, forms.linear_by(packer), config, folder, plain)
    return plain


def make_quantised(root: Path, family: str, form: str, *, dtype: str = "float32") -> Models:
    """A quantised target, models and heads that draft for it, and modules quantised like it."""
    save_tiny(family, root / "target")
    plain = pack_in_place(root / "target", form)
    own = with_modules(root / "modules", TABLES["deepseek"], num=3, body=family)
    pack_in_place(root / "modules", form)
    save_tiny("llama", root / "stranger", seed=7)
    return _models(root, plain, dtype=dtype, modules=(own.load(), own.load(most=1)))


def make_packed_llama(root: Path, form: str) -> Models:
    """A Llama with whole groups of 32 inputs, which a CPU computes with in codes."""
    torch.manual_seed(4)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"hidden_size": 64, "intermediate_size": 64}))
    model.save_pretrained(root / "target")
    plain = pack_in_place(root / "target", form)
    save_tiny("llama", root / "stranger", seed=7)
    return _models(root, plain, dtype="packed", modules=(None, None))


def _models(root: Path, plain: Path, *, dtype: str, modules) -> Models:
    target = load_decoder(root / "target", dtype=dtype, device=CPU)
    _disturb(plain, root / "relative")
    relative, stranger = (
        load_decoder(root / name, dtype="float32", device=CPU) for name in ("relative", "stranger")
    )
    for name in ("eagle", "eagle3"):
        write_head(root / name, target.config, algorithm=name)
    beside = {"target": target, "target_folder": root / "target", "dtype": "float32"}
    heads = {name: load_head(root / name, device=CPU, **beside) for name in ("eagle", "eagle3")}
    write_medusa(root / "medusa", target.config, MedusaVariant())
    heads["medusa"] = load_medusa(root / "medusa", **beside)
    heads["mtp"] = modules[1]
    theirs = AutoModelForCausalLM.from_pretrained(plain, attn_implementation="eager").eval()
    return Models(theirs, target, relative, stranger, root / "target", heads, modules[0])


def _disturb(plain: Path, folder: Path) -> None:
    """The numbers of a folder, changed so that the model agrees only sometimes."""
    shutil.copytree(plain, folder)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor * (1 + 0.05 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors")
