"""Finds the PEFT folder of a LoRA adapter. Its weights are read where the model is."""

from pathlib import Path

from outrider.errors import RequestError
from outrider.wire.adapter import Adapter

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def find_adapter(folder: str | Path, name: str = "") -> Adapter:
    """The adapter in a folder, with the version that its files have now, served by a name."""
    try:
        path = Path(folder).expanduser().resolve()
        versions = [_version_of(path / file) for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    # ValueError: a path with a zero byte; RuntimeError: ~name of a user that is not there, a loop
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"there is no adapter in {str(folder)!r}: it cannot be read ({error}); give a PEFT "
            f"folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
        ) from error
    return Adapter(path=str(path), version="-".join(versions), name=name)


def _version_of(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_ino:x}.{stat.st_size:x}.{stat.st_mtime_ns:x}"
