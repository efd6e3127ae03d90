"""Finds the PEFT folder of a LoRA adapter. Its weights are read where the model is.

The folder `draft` in it, likewise of PEFT, is an adapter of the draft head. Either may be absent.
"""

from pathlib import Path

from outrider.errors import RequestError
from outrider.wire.adapter import DRAFT_PART, TARGET_PART, Adapter

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


def find_adapter(folder: str | Path, name: str = "") -> Adapter:
    """The adapter in a folder, with the version that its files have now, served by a name."""
    try:
        path = Path(folder).expanduser().resolve()
        folders = [path / part for part in parts_in(path)] or [path]
        versions = [_version_of(each / file) for each in folders for file in _FILES]
    # ValueError: a path with a zero byte; RuntimeError: ~name of a user that is not there, a loop
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"there is no adapter in {str(folder)!r}: it cannot be read ({error}); give a PEFT "
            f"folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
        ) from error
    return Adapter(path=str(path), version="-".join(versions), name=name)


def parts_in(path: Path) -> tuple[str, ...]:
    """Which adapters a folder has: of the target, of the draft head, or both."""
    return tuple(part for part in (TARGET_PART, DRAFT_PART) if (path / part / _FILES[0]).is_file())


def _version_of(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_ino:x}.{stat.st_size:x}.{stat.st_mtime_ns:x}"
