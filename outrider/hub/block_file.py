"""The file of GGUF blocks in a converted folder: its name, and the names of its tensors.

It has the format of safetensors, with another ending: libraries must not take it for weights.
"""

# The kinds of blocks that a CPU computes with. Others are widened when a file is converted.
BLOCK_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
BLOCKS_FILE = "gguf_blocks.bin"


def block_name(weight: str, kind: str) -> str:
    """The name of the blocks of a weight, such as lm_head.weight.Q6_K."""
    return f"{weight}.{kind}"


def split_name(stored: str) -> tuple[str, str]:
    """The weight and the kind in the name of its blocks."""
    weight, _, kind = stored.rpartition(".")
    return weight, kind
