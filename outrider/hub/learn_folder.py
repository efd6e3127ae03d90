"""The versions of a draft head that a server has learned, as they are stored.

    FOLDER/current.json               the version in use, and the head before learning
    FOLDER/version-0001/head          config.json and model.safetensors, as any other head
    FOLDER/version-0001/learned.json  what it was measured with

Version 0 is the head before learning. It stays where it is. Folders and files appear complete or
not at all. No text is ever stored here.
"""

import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged
from outrider.hub.atomic_json import write_json
from outrider.hub.cache_location import cache_folder
from outrider.hub.weights_fingerprint import fingerprint

BEFORE_LEARNING = 0
_KEPT = 5  # newest versions; the one in use stays, too
_CURRENT, _FACTS, _HEAD, _LOCK = "current.json", "learned.json", "head", ".lock"
_NAME = re.compile(r"version-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedVersion:
    """How one version came about, and what it was measured with."""

    version: int
    parent: int  # the version that training began with
    steps: int  # of training since the server started
    texts: int  # in the buffer, those held back included
    acceptance_before: float  # tokens per round of the parent, on texts that were held back
    acceptance_after: float  # of this version, on the same texts


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnFolder:
    """Where the versions of one head are."""

    path: Path
    start: Path  # folder of the head before learning

    @property
    def current(self) -> int:
        """The version in use."""
        return current_version(self.path)

    @property
    def next_number(self) -> int:
        return max((each.version for each in list_versions(self.path)), default=0) + 1

    def head(self, version: int) -> Path:
        """The folder of a version's head."""
        if version == BEFORE_LEARNING:
            return self.start
        folder = version_head(self.path, version)
        if not folder.is_dir():
            known = [BEFORE_LEARNING, *(each.version for each in list_versions(self.path))]
            raise ConfigError(
                f"{self.path} has no version {version} of the head; it has "
                f"{', '.join(map(str, known))}"
            )
        return folder

    def parent(self, version: int) -> int:
        """The version that another one was trained from."""
        found = [each.parent for each in list_versions(self.path) if each.version == version]
        return found[0] if found else BEFORE_LEARNING

    def check(self) -> None:
        """Refuse a folder with versions of another head."""
        stored = _read_object(self.path / _CURRENT).get("start", "")
        if stored and stored != fingerprint(self.start):
            raise ConfigError(
                f"{self.path} holds versions of another head than {self.start}; use another "
                "--learn-folder"
            )

    def lock(self) -> TextIO:
        """Keep other servers out: they would delete versions that this one uses.

        The folder is locked as long as the file is open.
        """
        with _writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / _LOCK).open("w", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(
                f"another server learns in {self.path}; use another --learn-folder"
            ) from error
        return file

    def use(self, version: int) -> None:
        """Note the version in use, and delete old ones."""
        content = {"version": version, "start": fingerprint(self.start)}
        with _writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / _CURRENT, content)
        kept = {version, *(each.version for each in list_versions(self.path)[-_KEPT:])}
        for each in list_versions(self.path):
            if each.version not in kept:
                shutil.rmtree(_version_folder(self.path, each.version), ignore_errors=True)

    @contextmanager
    def new_version(self, facts: LearnedVersion) -> Iterator[Path]:
        """A folder that does not exist yet, for the head. The version appears after the body."""
        with staged(_version_folder(self.path, facts.version)) as partial:
            text = json.dumps(asdict(facts), indent=1) + "\n"
            (partial / _FACTS).write_text(text, encoding="utf-8")
            yield partial / _HEAD


def open_learn_folder(given: str, head: Path) -> LearnFolder:
    """The folder that the user names, or one in the cache for this head."""
    usual = cache_folder() / "learned" / f"{head.resolve().name}-{fingerprint(head)}"
    folder = LearnFolder(path=Path(given) if given else usual, start=head.resolve())
    folder.check()
    return folder


def is_learn_folder(path: Path) -> bool:
    """Whether a folder holds versions of a head."""
    return (path / _CURRENT).is_file() or bool(list_versions(path))


def current_version(path: Path) -> int:
    """The version in use in a folder with versions."""
    return int(_read_object(path / _CURRENT).get("version", BEFORE_LEARNING))


def version_head(path: Path, version: int) -> Path:
    """The head of a version above 0."""
    return _version_folder(path, version) / _HEAD


def list_versions(path: Path) -> list[LearnedVersion]:
    """Oldest first."""
    found = path.iterdir() if path.is_dir() else ()
    folders = [each for each in found if _NAME.fullmatch(each.name)]
    return sorted((_read_version(each) for each in folders), key=lambda each: each.version)


def _read_version(folder: Path) -> LearnedVersion:
    try:
        return LearnedVersion(**_read_object(folder / _FACTS))
    except TypeError as error:
        raise ConfigError(f"{folder / _FACTS} does not describe a version ({error})") from error


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); delete it") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no object; delete it")
    return content


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write to {path} ({error.strerror}); make room or give access there, or use "
            "another --learn-folder"
        ) from error


def _version_folder(path: Path, version: int) -> Path:
    return path / f"version-{version:04d}"
