"""The container and the systemd unit: everything that they name exists, and their commands run."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from support.served import ServerProcess
from support.spoken import tiny_llama, write_tokenizer

from outrider.cli.main import app
from outrider.hub.cache_location import converted_folder, kernel_root

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
UNIT = (ROOT / "deploy/outrider.service").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SERVE = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]


def instructions(name):
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, flags=re.MULTILINE)


def test_the_files_that_the_image_copies_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for line in instructions("COPY") for source in line.split()[:-1]]
    assert "outrider" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert source not in ignored


def test_the_image_has_both_targets_and_installs_extras_that_exist():
    assert instructions("FROM")[1:] == ["base AS cpu", "base AS cuda"]
    extras = re.findall(r"\"\.\[(.*?)\]\"", DOCKERFILE)
    assert len(extras) == 2
    assert {name for each in extras for name in each.split(",")} <= set(EXTRAS)


def test_the_image_serves_by_default_with_flags_that_exist():
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["outrider"]
    name, *flags = json.loads(command)
    assert name == "serve"
    known = {flag for each in SERVE.params for flag in each.opts}
    assert {flag for flag in flags if flag.startswith("--")} <= known


def test_the_torch_of_the_image_is_the_one_that_the_package_needs():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f'"{needed[0]}"' in DOCKERFILE


def test_converted_models_and_compiled_kernels_lie_on_the_volume(monkeypatch):
    (volume,) = instructions("VOLUME")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for name, value in re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV"))):
        monkeypatch.setenv(name, value)
    for folder in (converted_folder(), kernel_root()):
        assert Path(volume) in folder.parents


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path):
    path = tmp_path / "outrider.service"
    path.write_text(UNIT.replace("/opt/outrider/bin/outrider", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True
    )
    about_unit = [line for line in done.stderr.splitlines() if "outrider.service" in line]
    assert about_unit == []
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_of_the_unit_starts_a_server_that_the_health_check_of_the_image_accepts(
    tmp_path,
):
    tiny_llama(256).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT, flags=re.MULTILINE)
    assert command == "serve --config /etc/outrider/serve.yaml"
    flags = ["--config", str(ROOT / "deploy/serve.yaml")]
    server = ServerProcess(tmp_path, tmp_path / "log", *flags)
    try:
        (check,) = re.findall(r"HEALTHCHECK .*? CMD (.*)$", DOCKERFILE, flags=re.MULTILINE)
        _, *arguments = json.loads(check)
        here = [each.replace("http://127.0.0.1:8000", server.url) for each in arguments]
        assert here != arguments
        assert subprocess.run([sys.executable, *here]).returncode == 0
        assert server.get("/v1/models").status_code == 200
        first_line = (tmp_path / "log").read_text().splitlines()[0]
        assert json.loads(first_line)["process"] in ("server", "worker")
    finally:
        server.process.terminate()
        server.process.wait(60)
