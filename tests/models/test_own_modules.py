"""`--draft mtp` on whole model folders: tokens are equal with and without drafts."""

import pytest
from support.modules import TABLES, with_modules
from support.v4 import saved_v4
from support.v4_module import save_with_module

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError

PROMPTS = [[7, 3, 44, 19, 60, 2, 31, 8], [5, 9]]


def answers(folder, draft, **sizes):
    # Adaptive drafting would depend on the speed of the machine.
    config = DraftConfig(drafter=draft, adaptive=False, **sizes)
    llm = LLM(folder, draft=config, device="cpu", max_model_len=64, max_num_seqs=2)
    params = [
        SamplingParams(
            temperature=temperature, seed=4, max_tokens=12, detokenize=False, ignore_eos=True
        )
        for temperature in (0.0, 1.0)
    ]
    return [output.outputs[0] for each in params for output in llm.generate(PROMPTS, each)]


def assert_same_tokens(drafted, plain):
    assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
    assert all(each.acceptance.drafted for each in drafted)


@pytest.mark.parametrize("num", [1, 2])
def test_modules_of_deepseek_v3_change_no_token(tmp_path, num):
    with_modules(tmp_path / "m", TABLES["deepseek"], num=num, body="deepseek-v3")
    drafted = answers(tmp_path / "m", "mtp", steps=2)
    assert_same_tokens(drafted, answers(tmp_path / "m", "none"))


def test_the_module_of_deepseek_v4_changes_no_token(tmp_path):
    save_with_module(tmp_path)
    drafted = answers(tmp_path, "mtp", steps=2)
    assert_same_tokens(drafted, answers(tmp_path, "none"))


def test_a_tree_over_the_module_of_deepseek_v4_is_refused(tmp_path):
    save_with_module(tmp_path)
    with pytest.raises(ConfigError, match="--topk"):
        LLM(tmp_path, device="cpu", draft="mtp", adaptive=False, steps=2, topk=2)


def test_a_deepseek_v4_without_a_module_is_refused(tmp_path):
    saved_v4(tmp_path)
    with pytest.raises(ConfigError, match="holds no draft module"):
        LLM(tmp_path, device="cpu", draft="mtp", adaptive=False)


def test_the_doctor_finds_the_module_of_deepseek_v4(tmp_path, capsys):
    save_with_module(tmp_path)
    assert run(["doctor", "mtp", "--model", str(tmp_path), "--no-probe"]) == 0
    assert "mtp.0.*" in capsys.readouterr().out
