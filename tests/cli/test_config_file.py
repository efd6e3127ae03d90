"""`--config FILE`: flags from YAML, before those of the command line."""

import pytest

from outrider.cli.config_file import with_config_file
from outrider.cli.main import run
from outrider.errors import ConfigError

FLAGS = {
    "--port": ("--port", ""),
    "--stop": ("--stop", ""),
    "--speculative-config": ("--speculative-config", ""),
    "--adaptive": ("--adaptive", "--no-adaptive"),
    "--max-model-len": ("--max-context", ""),
}


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "flags.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_flags_of_the_file_come_before_those_of_the_command_line(write):
    path = write("port: 9000\nmax_model_len: 64\n")
    expanded = with_config_file(["serve", "--config", path, "--port", "1"], FLAGS)
    assert expanded[:5] == ["serve", "--port", "9000", "--max-model-len", "64"]
    assert expanded[5:] == ["--config", path, "--port", "1"]


def test_lists_objects_and_switches_become_flags(write):
    path = write("stop: [a, b]\nadaptive: false\nspeculative-config: {method: ngram}\nport: null\n")
    expanded = with_config_file(["serve", f"--config={path}"], FLAGS)
    assert expanded[1:-1] == [
        *("--stop", "a", "--stop", "b", "--no-adaptive"),
        *("--speculative-config", '{"method": "ngram"}'),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("prot: 1", "no flag --prot"), ("[1, 2]", "must hold flags"), ("a: [", "cannot be read")],
)
def test_a_file_that_holds_no_flags_is_refused(write, text, reason):
    with pytest.raises(ConfigError, match=reason):
        with_config_file(["serve", "--config", write(text)], FLAGS)


def test_the_flags_of_a_file_reach_the_command(write, capsys):
    path = write("temperature: -1\n")
    assert run(["generate", "hello", "--config", path]) == 1
    assert "use 0 for greedy" in capsys.readouterr().err
    assert run(["generate", "hello", "--config", path, "--temperature", "0", "--top-p", "0"]) == 1
    assert "top_p" in capsys.readouterr().err
