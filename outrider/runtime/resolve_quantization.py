"""What `--quantization` means for a folder: nothing, or that projections are quantised at load."""

from pathlib import Path

from outrider.config.engine_config import Quantization, QuantizationFlag
from outrider.errors import ConfigError
from outrider.models.quantised.quantisation_files import read_quantisation
from outrider.models.quantised.stored_blocks import has_stored_blocks

# Names of kernels that other engines have for a stored form.
_SAME: dict[str, str] = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "modelopt_fp8": "modelopt",
    "modelopt_fp4": "modelopt",
}


def resolve_quantization(folder: Path, requested: QuantizationFlag) -> Quantization:
    """Refuses a name that is not what the folder stores."""
    if requested == "none":
        return "none"
    stored = read_quantisation(folder).method or ("gguf" if has_stored_blocks(folder) else "")
    if stored == _SAME.get(requested, requested):
        return "none"
    if stored:
        raise ConfigError(
            f"{folder} is quantised already ({stored}), and --quantization {requested} says "
            f"otherwise; use {stored}, or leave it out"
        )
    if requested != "fp8":
        raise ConfigError(
            f"{folder} stores no weights in the form of --quantization {requested}; leave it out, "
            "or use fp8, which quantises at load"
        )
    return "fp8"
