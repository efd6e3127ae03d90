"""Finds the PEFT folder of a LoRA adapter. Its weights are read where the model is."""

from pathlib import Path

from outrider.errors import RequestError
from outrider.wire.adapter import Adapter

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def find_adapter(folder: str | Path) -> Adapter:
    """The adapter in a folder, with the version that its files have now."""
    path = Path(folder).expanduser()
    versions = []
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        try:
            stat = (path / name).stat()
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise RequestError(
                f"there is no adapter in {str(folder)!r}: {name} cannot be read ({error}); give a "
                f"PEFT folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
            ) from error
        versions.append(f"{stat.st_ino:x}.{stat.st_size:x}.{stat.st_mtime_ns:x}")
    return Adapter(path=str(path.resolve()), version="-".join(versions))
