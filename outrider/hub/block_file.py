"""The file of GGUF blocks in a converted folder: its name, and the names of its tensors.

It has the format of safetensors, with another ending: libraries must not take it for weights.
"""

# The kinds of blocks that are computed with: numbers and bytes of a block. Others are widened when
# a file is converted.
BLOCK_KINDS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
BLOCKS_FILE = "gguf_blocks.bin"


def block_name(weight: str, kind: str) -> str:
    """The name of the blocks of a weight, such as lm_head.weight.Q6_K."""
    return f"{weight}.{kind}"


def split_name(stored: str) -> tuple[str, str]:
    """The weight and the kind in the name of its blocks."""
    weight, _, kind = stored.rpartition(".")
    return weight, kind
