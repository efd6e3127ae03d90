"""The tensors of a block-parallel head besides its decoder layers."""

from pathlib import Path

import torch

from outrider.errors import ConfigError
from outrider.models.eagle.head_config import BlockHeadConfig, HeadConfig

MASK_VECTOR = "mask_embedding"
MASK_FILE = "mask_embedding.pt"
CONFIDENCE = "confidence_head.proj"  # [1, width] or [1, width + rank]
MARKOV = "markov_head."
MARKOV_FROM = MARKOV + "markov_w1.weight"  # [vocab, rank] of the token before
MARKOV_TO = MARKOV + "markov_w2.weight"  # [draft_vocab, rank]
SELECTOR = "candidate_selector."
SELECTOR_FROM = SELECTOR + "predecessor_codebook"  # [vocab, rank] of the token before
SELECTOR_TO = SELECTOR + "successor_codebook"  # [draft_vocab, rank]
SELECTOR_SCALE = SELECTOR + "hidden_projection"  # [rank, width]
MARKOV_GATE = MARKOV + "gate_proj"  # [rank, width + rank]

Shape = tuple[int, ...]


def block_shapes(config: HeadConfig, blocks: BlockHeadConfig) -> dict[str, Shape]:
    """What a head stores around its layers, by canonical name."""
    width = config.width
    shapes: dict[str, Shape] = {
        "fc.weight": (width, config.aux.width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    rank = blocks.markov.rank if blocks.markov else 0
    if blocks.markov:
        shapes[MARKOV_FROM] = (config.output.vocab, rank)
        shapes[MARKOV_TO] = (config.output.draft_vocab, rank)
    if blocks.markov and blocks.markov.is_gated:
        shapes[f"{MARKOV_GATE}.weight"] = (rank, width + rank)
        shapes[f"{MARKOV_GATE}.bias"] = (rank,)
    if blocks.confidence:
        reads = width + (rank if blocks.confidence.reads_token else 0)
        shapes[f"{CONFIDENCE}.weight"] = (1, reads)
        shapes |= {f"{CONFIDENCE}.bias": (1,)} if blocks.confidence.has_bias else {}
    if blocks.has_mask_vector:
        shapes[MASK_VECTOR] = (width,)
    return shapes | _local_shapes(config, blocks)


def conv_name(layer: int, part: str) -> str:
    """How the names of a convolution begin: of attention or mlp."""
    return f"layers.{layer}.{part}_conv."


def _local_shapes(config: HeadConfig, blocks: BlockHeadConfig) -> dict[str, Shape]:
    """The convolutions and the selector of DFlash2."""
    local, width = blocks.local, config.width
    if local is None:
        return {}
    shapes: dict[str, Shape] = {
        SELECTOR_FROM: (config.output.vocab, local.rank),
        SELECTOR_TO: (config.output.draft_vocab, local.rank),
        f"{SELECTOR_SCALE}.weight": (local.rank, width),
    }
    kernels = 2 * local.taps * (width // local.group)
    for layer in range(config.num_layers):
        for part in ("attention", "mlp"):
            shapes[conv_name(layer, part) + "base_kernel"] = (2, local.taps, width)
            shapes[conv_name(layer, part) + "kernel_projection.weight"] = (kernels, width)
    return shapes


def read_mask_vector(folder: Path) -> dict[str, torch.Tensor]:
    """The vector of masks by its name, if the folder has one. Pickled code is never run."""
    path = folder / MASK_FILE
    if not path.is_file():
        return {}
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises errors of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path} is damaged ({reason}); download the head again") from error
    vector = stored.get("embedding") if isinstance(stored, dict) else stored
    if not isinstance(vector, torch.Tensor):
        raise ConfigError(f"{path} holds no vector; download the head again")
    return {MASK_VECTOR: vector.flatten()}
