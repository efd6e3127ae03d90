"""Whether two folders hold the same weights."""

import hashlib
from pathlib import Path

_WEIGHTS = (".safetensors", ".gguf", ".bin")
_SAMPLE_BYTES = 2**16


def fingerprint(path: Path) -> str:
    """Of the configuration, and of sizes and samples of weight files. All bytes take minutes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = hashlib.sha256()
    for each in files:
        if each.name.endswith(_WEIGHTS):
            found.update(f"{each.name} {each.stat().st_size}\n".encode())
            found.update(_sample(each))
        elif each.name == "config.json":
            found.update(each.read_bytes())
    return found.hexdigest()[:16]


def _sample(file: Path) -> bytes:
    """Bytes from the begin, the middle and the end: other weights have others somewhere there."""
    last = max(file.stat().st_size - _SAMPLE_BYTES, 0)
    found = b""
    with file.open("rb") as opened:
        for start in (0, last // 2, last):
            opened.seek(start)
            found += opened.read(_SAMPLE_BYTES)
    return found
