"""Models of the Hugging Face hub, in the hub's own cache, which other tools share.

The hub library draws progress bars and resumes downloads by itself.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider.hub.model_folder import missing_files

_REACH_TIMEOUT_S = 5.0
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_UNWANTED = ["*/*", "consolidated*.safetensors"]  # other formats of the same weights
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The hub did not answer, or HF_HUB_OFFLINE is set."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotCached:
    """The hub's cache does not hold all files of the model."""


def cached(hub_id: str, revision: str = "", others: Sequence[str] = ()) -> Path | NotCached:
    """The model's folder in the hub's cache. Does not use the network.

    Weights may match `others`, as in `missing_files`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            hub_id,
            revision=revision or None,
            local_files_only=True,
            allow_patterns=[*_WANTED, *others],
            ignore_patterns=_UNWANTED,
        )
    except LocalEntryNotFoundError:
        return NotCached()
    except HFValidationError as error:
        raise ConfigError(
            f"{hub_id!r} cannot be a hub id; use owner/name as the hub spells it"
        ) from error
    # An interrupted download leaves an incomplete folder.
    return NotCached() if missing_files(Path(folder), others) else Path(folder)


def download_model(
    hub_id: str, revision: str = "", others: Sequence[str] = ()
) -> Path | Unreachable:
    """The model's folder, after missing files were downloaded. `others` as for `cached`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        # snapshot_download may wait for ever, so the hub is asked first.
        HfApi().model_info(hub_id, revision=revision or None, timeout=_REACH_TIMEOUT_S)
        folder = _fetch(hub_id, revision, _WANTED)
        if others and missing_files(folder):  # only then: many models have both kinds
            folder = _fetch(hub_id, revision, [*_WANTED, *others])
    except RevisionNotFoundError as error:
        raise ConfigError(
            f"{hub_id} has no revision {revision}; use a branch, a tag or a commit of the hub"
        ) from error
    except GatedRepoError as error:
        raise ConfigError(
            f"{hub_id} needs permission: accept its licence on the hub, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"the hub has no model {hub_id}; check the spelling, "
            "or run `hf auth login` if it is private"
        ) from error
    # The allowed versions of the hub library use three HTTP libraries (requests, httpx, httpx2),
    # whose transport errors have no common base class.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise ConfigError(
                f"cannot write {hub_id} to the hub's cache: {error.strerror}; "
                "make room or give access there, or set HF_HOME to another folder"
            ) from error
        return Unreachable(str(error).partition("\n")[0] or type(error).__name__)
    if missing := missing_files(folder, others):
        raise ConfigError(
            f"{hub_id} on the hub has no {missing[0]}; use a model with safetensors weights, "
            "or download one of its GGUF files and pass the path"
        )
    return folder


def _fetch(hub_id: str, revision: str, wanted: list[str]) -> Path:
    """The folder with the files of these patterns."""
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        hub_id, revision=revision or None, allow_patterns=wanted, ignore_patterns=_UNWANTED
    )
    return Path(found)


def cached_models() -> Iterator[tuple[str, Path]]:
    """The id and the folder of every complete model in the hub's cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for hub_id in sorted(repo.repo_id for repo in repositories if repo.repo_type == "model"):
        folder = cached(hub_id)
        if not isinstance(folder, NotCached):
            yield hub_id, folder
