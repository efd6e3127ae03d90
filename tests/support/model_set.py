"""The models of the equality matrix, made and loaded once."""

from pathlib import Path

import torch

from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.medusa.medusa_loader import load_medusa
from outrider.models.pard_draft import PardDraft
from support.block_heads import BLOCKS, write_block_head
from support.heads import Variant, write_head
from support.matrix import Models
from support.medusa_models import MedusaVariant, write_medusa
from support.modules import TABLES, with_modules
from support.peagle_heads import write_peagle
from support.tiny import save_tiny


def make_models(root: Path, device: str, family: str = "llama") -> Models:
    """A tiny target, a similar and an unrelated model, and a random head of each kind.

    The unrelated model and the heads store keys and values, but for eagle3-mla; modules store what
    the target stores.
    """
    place = torch.device(device)

    def load(name, family=family, **how):
        theirs = save_tiny(family, root / name, **how)
        return theirs, load_decoder(root / name, dtype="float32", device=place)

    theirs, target = load("target")
    _, relative = load("relative", disturbance=0.02)
    _, stranger = load("stranger", "llama", seed=7)
    for name in ("eagle", "eagle3"):
        write_head(root / name, target.config, algorithm=name)
    write_head(root / "eagle3-mla", target.config, has_latents=True, query_rank=14)
    for name, variant in BLOCKS.items():
        write_block_head(root / name, target.config, variant)
    write_peagle(root / "peagle", target.config, Variant(own_embedding=True))
    heads = {
        name: load_head(
            root / name,
            target=target,
            target_folder=root / "target",
            dtype="float32",
            device=place,
        )
        for name in ("eagle", "eagle3", "eagle3-mla", "peagle", *BLOCKS)
    }
    vocab = target.config.vocab_size
    heads["pard"] = PardDraft(relative, mask_token=3, target_vocab=vocab)
    write_medusa(root / "medusa", target.config, MedusaVariant())
    heads["medusa"] = load_medusa(
        root / "medusa", target=target, target_folder=root / "target", dtype="float32"
    )
    own = with_modules(root / "modules", TABLES["deepseek"], num=3, body=family, device=device)
    heads["mtp"] = own.load(most=1)
    return Models(theirs, target, relative, stranger, root / "target", heads, own.load())
