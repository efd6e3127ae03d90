"""Values of --model, in the order they are tried, and the messages when none fits."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.resolve_model import list_local_models, resolve_model

SILENT = SilentReporter()


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(name, SILENT)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run_resolve(path: Path, prelude: str = "") -> subprocess.Popen[str]:
    """`resolve_model` in another process, which prints the folder or the refusal."""
    script = textwrap.dedent("""
        import sys
        from outrider.errors import ConfigError
        from outrider.hub.download_progress import SilentReporter
        from outrider.hub.resolve_model import resolve_model
        try:
            print(resolve_model(sys.argv[1], SilentReporter()))
        except ConfigError as error:
            print("refused:", error)
    """)
    command = [sys.executable, "-c", textwrap.dedent(prelude) + script, str(path)]
    repository = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository)


def model_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_complete_folder_is_returned_unchanged(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "config.json", "model.safetensors")
    assert resolve_model(str(folder), SILENT) == folder


def test_a_folder_without_config_is_refused(tmp_path: Path, cache: Path) -> None:
    folder = model_folder(tmp_path / "model", "model.safetensors")
    assert "has no config.json" in refusal(str(folder))


def test_a_folder_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "config.json", "a.safetensors")
    index = '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    assert "lacks b.safetensors" in refusal(str(folder))
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "is damaged" in refusal(str(folder))


def test_a_gguf_file_is_converted_once(make_gguf: Callable, tmp_path: Path, cache: Path) -> None:
    path = make_gguf("llama").write(tmp_path / "tiny.gguf")
    first = resolve_model(str(path), SILENT)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(path), SILENT) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    os.utime(path, (0, 0))  # now it counts as another file
    assert resolve_model(str(path), SILENT) != first
    assert len(os.listdir(cache)) == 2


def test_a_cached_model_is_listed_and_found_by_its_name(
    make_gguf: Callable, tmp_path: Path, cache: Path
) -> None:
    folder = resolve_model(str(make_gguf("qwen3").write(tmp_path / "tiny.gguf")), SILENT)
    (cache / ".other.partial-host-1-00ff").mkdir()  # another process is writing it
    (listed,) = [model for model in list_local_models() if model.origin == "converted"]
    assert (listed.name, listed.folder) == (folder.name, folder)
    assert listed.num_bytes == sum(file.stat().st_size for file in folder.iterdir())
    assert resolve_model(listed.name, SILENT) == folder


@pytest.mark.parametrize("alias", ["smollm2", "SmolLM2-135M-Instruct"])
def test_every_alias_of_a_model_finds_its_folder(cache: Path, alias: str) -> None:
    folder = model_folder(cache / "smollm2-135m-instruct", "config.json", "model.safetensors")
    assert resolve_model(alias, SILENT) == folder


def test_a_cached_folder_that_lost_a_file_names_the_fix(cache: Path) -> None:
    folder = model_folder(cache / "smollm2-135m-instruct", "config.json")
    message = refusal("smollm2")
    assert f"{folder} lacks model.safetensors; delete that folder" in message


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("qwen3-0.6", "did you mean qwen3-0.6b?"),
        ("zzzz", "unknown model 'zzzz': pass a folder"),
        ("models/tiny.gguf", "there is no file or folder models/tiny.gguf"),
        ("~/nothing-here", "there is no file or folder ~/nothing-here"),
        ("..", "has no config.json"),
        ("a/b/c", "unknown model"),
        ("owner/a..b", "cannot be a hub id"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(
    cache: Path,
    name: str,
    complaint: str,
) -> None:
    assert complaint in refusal(name)


def test_an_unwritable_cache_names_the_fix(
    make_gguf: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf("llama").write(tmp_path / "tiny.gguf")
    monkeypatch.setenv("OUTRIDER_CACHE", str(path / "below-a-file"))
    assert "set OUTRIDER_CACHE to another folder" in refusal(str(path))


def test_a_refused_file_leaves_the_cache_empty(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    assert "truncated" in refusal(str(tmp_path / "bad.gguf"))
    assert os.listdir(cache) == []


def test_ctrl_c_while_converting_leaves_the_cache_empty(
    make_gguf: Callable, tmp_path: Path, cache: Path
) -> None:
    class Interrupter(SilentReporter):
        num_calls = 0

        def advance(self, amount: int) -> None:
            self.num_calls += 1
            if self.num_calls == 5:
                signal.raise_signal(signal.SIGINT)

    path = make_gguf("llama").write(tmp_path / "tiny.gguf")
    with pytest.raises(KeyboardInterrupt):
        resolve_model(str(path), Interrupter())
    assert os.listdir(cache) == []


def test_a_full_disk_while_converting_leaves_the_cache_empty(
    make_gguf: Callable, tmp_path: Path, cache: Path
) -> None:
    path = make_gguf("llama").write(tmp_path / "tiny.gguf")
    limit = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    """
    message, _ = run_resolve(path, limit).communicate()
    assert message.startswith("refused: cannot write")
    assert "File too large; make room or give access there" in message
    assert os.listdir(cache) == []


def test_two_processes_that_convert_the_same_file_both_succeed(
    make_gguf: Callable, tmp_path: Path, cache: Path
) -> None:
    path = make_gguf("llama").write(tmp_path / "tiny.gguf")
    both = [run_resolve(path), run_resolve(path)]
    folders = {process.communicate()[0].strip() for process in both}
    assert folders == {str(resolve_model(str(path), SILENT))}
    assert [str(cache / name) for name in os.listdir(cache)] == list(folders)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_single_file_of_a_model_folder_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError, match="pass the folder that holds it"):
        resolve_model(str(tmp_path / name), SILENT)


@pytest.mark.parametrize("content", [b"", b"GG", b"FUGG and more", b"my notes"])
def test_a_file_without_the_gguf_magic_is_refused(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no GGUF file; pass a GGUF file, a folder or a name"):
        resolve_model(str(path), SILENT)


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused_even_inside_a_model_folder(tmp_path, monkeypatch, name):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the name of the model .--model. is empty"):
        resolve_model(name, SILENT)
