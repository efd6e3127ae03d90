"""A staged folder appears complete or not at all."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged


def write_in(target: Path, text: str) -> None:
    with staged(target) as partial:
        (partial / "file").write_text(text)


def test_the_folder_appears_when_the_body_ends(tmp_path: Path) -> None:
    write_in(tmp_path / "deep" / "model", "whole")
    assert (tmp_path / "deep" / "model" / "file").read_text() == "whole"
    assert os.listdir(tmp_path / "deep") == ["model"]


@pytest.mark.parametrize("mishap", [KeyboardInterrupt, ConfigError, AssertionError])
def test_no_folder_is_left_when_the_body_fails(tmp_path: Path, mishap: type[BaseException]) -> None:
    def fail_halfway() -> None:
        with staged(tmp_path / "model") as partial:
            (partial / "file").write_text("half")
            raise mishap

    with pytest.raises(mishap):
        fail_halfway()
    assert os.listdir(tmp_path) == []


def test_the_first_of_two_writers_wins(tmp_path: Path) -> None:
    with staged(tmp_path / "model") as slow:
        (slow / "file").write_text("slow")
        write_in(tmp_path / "model", "fast")
    assert (tmp_path / "model" / "file").read_text() == "fast"
    assert os.listdir(tmp_path) == ["model"]


def test_partial_folders_of_dead_processes_are_removed_and_those_of_live_ones_stay(
    tmp_path: Path,
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname()
    gone = tmp_path / f".model.partial-{host}-{dead.pid}-00ff"
    alive = tmp_path / f".model.partial-{host}-{os.getppid()}-00ff"
    elsewhere = tmp_path / f".model.partial-elsewhere-{dead.pid}-00ff"
    for leftover in (gone, alive, elsewhere):
        leftover.mkdir()
    write_in(tmp_path / "other", "whole")
    assert set(tmp_path.iterdir()) == {alive, elsewhere, tmp_path / "other"}


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="set OUTRIDER_CACHE to another folder"):
        write_in(tmp_path / "file" / "model", "whole")
