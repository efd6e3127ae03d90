"""Versions of a head on disk: whole or not there, bounded, and bound to one head."""

import json

import pytest

from outrider.errors import ConfigError
from outrider.hub.learn_folder import (
    LearnedVersion,
    LearnFolder,
    current_version,
    list_versions,
    open_learn_folder,
)


@pytest.fixture
def folder(tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text("{}")
    return open_learn_folder(str(tmp_path / "learned"), head)


def facts(version: int, parent: int = 0) -> LearnedVersion:
    return LearnedVersion(
        version=version,
        parent=parent,
        steps=128,
        texts=12,
        acceptance_before=1.5,
        acceptance_after=1.75,
    )


def write(folder: LearnFolder, version: int, parent: int = 0) -> None:
    with folder.new_version(facts(version, parent)) as head:
        head.mkdir()
        (head / "config.json").write_text(json.dumps({"version": version}))


def test_a_version_that_was_not_finished_is_not_there(folder):
    with pytest.raises(ZeroDivisionError), folder.new_version(facts(1)) as head:
        head.mkdir(mode=1 // 0)
    assert list_versions(folder.path) == []
    assert folder.next_number == 1
    assert [path.name for path in folder.path.iterdir()] == []


def test_versions_have_parents_and_one_is_in_use(folder):
    write(folder, 1)
    write(folder, 2, parent=1)
    assert folder.current == 0  # until the engine has taken it
    folder.use(2)
    assert (folder.current, current_version(folder.path)) == (2, 2)
    assert (folder.parent(2), folder.parent(1), folder.next_number) == (1, 0, 3)
    assert list_versions(folder.path) == [facts(1), facts(2, parent=1)]
    assert folder.head(0) == folder.start
    assert json.loads((folder.head(2) / "config.json").read_text()) == {"version": 2}


def test_old_versions_leave_but_not_the_one_in_use(folder):
    for version in range(1, 9):
        write(folder, version)
    folder.use(1)
    assert [each.version for each in list_versions(folder.path)] == [1, 4, 5, 6, 7, 8]


def test_a_missing_version_names_those_that_are_there(folder):
    write(folder, 3)
    with pytest.raises(ConfigError, match="no version 2 of the head; it has 0, 3"):
        folder.head(2)


def test_versions_of_another_head_are_refused(folder, tmp_path):
    folder.use(0)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"hidden_size": 1}')
    with pytest.raises(ConfigError, match="use another --learn-folder"):
        open_learn_folder(str(folder.path), other)


def test_the_newest_versions_stay_when_numbers_get_longer(folder):
    for version in range(9_996, 10_003):
        write(folder, version)
    folder.use(10_002)
    assert [each.version for each in list_versions(folder.path)] == list(range(9_998, 10_003))
    assert folder.next_number == 10_003


def test_one_server_at_a_time_learns_in_a_folder(folder):
    with folder.lock(), pytest.raises(ConfigError, match="another server learns in"):
        folder.lock()
    folder.lock().close()  # the first has ended


def test_a_folder_that_cannot_be_written_is_named(folder):
    folder.path.write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write to .*learned"):
        folder.lock()
