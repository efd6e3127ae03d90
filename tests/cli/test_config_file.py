"""`--config FILE`: flags from YAML, before those of the command line."""

import pytest

from outrider.cli.config_file import with_config_file
from outrider.cli.main import _expand, run
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


def test_flags_of_other_projects_mean_in_a_file_what_they_mean_on_a_command_line(write, capsys):
    path = write(
        "disable-overlap-schedule: true\nchunked_prefill_size: 512\ntrust-remote-code: true\n"
        "disable-radix-cache: false\nspeculative-adaptive: false\nload-format: auto\n"
        "lora-target-modules: [q_proj, v_proj]\n"
    )
    expanded = _expand(["serve", "--config", path])
    flags = ["--depth", "0", "--max-num-batched-tokens", "512", "--no-adaptive"]
    assert expanded == ["serve", *flags, "--config", path]
    assert capsys.readouterr().err.count("changes nothing") == 3


def test_a_flag_of_a_file_that_cannot_be_followed_is_refused_with_the_reason(write, capsys):
    assert run(["serve", "--config", write("pp_size: 2\n")]) == 1
    assert "use --tensor-parallel-size" in capsys.readouterr().err
