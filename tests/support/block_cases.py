"""Every kind of block-parallel drafter, and its rounds in an engine against its reference."""

from outrider.wire.row_sampling import RowSampling
from support.block_heads import BlockVariant
from support.block_models import DFlashCase, MedusaCase, PardCase, PEagleCase
from support.block_rounds import BlockRounds
from support.heads import Variant
from support.medusa_models import MedusaVariant

SAMPLED = RowSampling(seed=11, temperature=0.6)
MARKOV = BlockVariant(is_next=True, markov_rank=6, has_confidence=True, reads_token=True)
GATED = BlockVariant(size=4, is_next=True, markov_rank=5, is_gated=True, num_layers=1)
TRAINED = Variant(own_embedding=True, norm_before_residual=True, fc_norm=True, head_norm=True)
LOCAL = BlockVariant(
    num_layers=3, taps=3, group=2, markov_rank=5, num_candidates=2, windows=(6, 6, 0)
)
SCALED = BlockVariant(
    taps=2, markov_rank=5, embedding_scale=3.0, logit_scale=0.4, logit_cap=1.5, num_candidates=7
)
LATENT = BlockVariant(is_next=True, markov_rank=6, has_latents=True, query_rank=14)
REDUCED = BlockVariant(is_next=True, markov_rank=6, draft_vocab=41)
MAPPED = MedusaVariant(num_blocks=2, has_bias=False, draft_vocab=40, shares_head=True)
VARIANTS = {
    "dflash": DFlashCase(),
    "causal": DFlashCase(variant=BlockVariant(is_causal=True, has_mask_vector=True)),
    "dspark": DFlashCase(variant=MARKOV),
    "gated": DFlashCase(variant=GATED),
    "mixed": DFlashCase(variant=BlockVariant(num_layers=3, windows=(6, 0, 6))),
    "windows": DFlashCase(variant=BlockVariant(is_next=True, windows=(9, 9))),
    "dflash2": DFlashCase(variant=LOCAL),
    "scaled2": DFlashCase(variant=SCALED),
    "latents": DFlashCase(variant=LATENT),
    "reduced": DFlashCase(variant=REDUCED),
    "confident": DFlashCase(variant=BlockVariant(has_confidence=True)),
    "causal2": DFlashCase(variant=BlockVariant(taps=2, markov_rank=4, is_causal=True)),
    "peagle": PEagleCase(variant=TRAINED, num_layers=3),
    "peagle1": PEagleCase(num_layers=1),
    "pard": PardCase(),
    "medusa": MedusaCase(),
    "mapped": MedusaCase(variant=MAPPED),
}


def mistakes(models, monkeypatch, folder, name, shape, **how):
    """Rounds with other states than the reference's, another chain or another first node."""
    case = VARIANTS[name]
    head, oracle = case.load(models, folder)
    drafted = BlockRounds(target=models.target, head=head, oracle=oracle, steps=case.num_drafts)
    return drafted.mistakes(monkeypatch, shape, **how)
