"""The kinds in which quantised weights are stored, and how messages call them."""

from typing import Literal

StoredKind = Literal["fp8", "mxfp8", "int8", "words", "gptq", "awq", "nvfp4", "mxfp4"]

NVFP4_GROUP, MX_GROUP = 16, 32  # inputs that share a scale, by the definition of the formats
GROUPS: dict[StoredKind, int] = {"nvfp4": NVFP4_GROUP, "mxfp4": MX_GROUP, "mxfp8": MX_GROUP}

SPOKEN: dict[StoredKind, str] = {
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "int8": "int8",
    "words": "integers of compressed-tensors",
    "gptq": "GPTQ or AWQ",
    "awq": "GPTQ or AWQ",
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
}
