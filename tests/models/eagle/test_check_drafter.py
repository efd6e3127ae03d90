"""The check at load: a useless drafter is reported in one line, a good one is not accused."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import tokenizers
from support.heads import write_head

from outrider import LLM, SamplingParams
from outrider.config.draft_config import DraftConfig
from outrider.frontend.check_drafter import _report
from outrider.frontend.draft_probe import Probe
from outrider.frontend.find_drafter import find_drafter
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_bars import BarReporter
from outrider.hub.shipped_heads import shipped_head


@pytest.fixture(scope="module")
def speaking(target, tmp_path_factory) -> Path:
    """The tiny target with a tokenizer of a few letters."""
    folder = shutil.copytree(target.folder, tmp_path_factory.mktemp("speaking") / "model")
    letters = tokenizers.models.BPE(vocab={c: i for i, c in enumerate("abcdefgh ")}, merges=[])
    tokenizers.Tokenizer(letters).save(str(folder / "tokenizer.json"))
    return folder


def load(model: Path, caplog, **arguments) -> LLM:
    with caplog.at_level(logging.INFO, logger="outrider.frontend.check_drafter"):
        return LLM(model, device="cpu", max_num_seqs=3, **arguments)


def lines(caplog) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "outrider.frontend.check_drafter"
    ]


def test_a_random_head_is_called_useless_in_one_line(target, speaking, tmp_path, caplog):
    head = write_head(tmp_path, target.config)
    load(speaking, caplog, draft=head)
    ((level, line),) = lines(caplog)
    assert level == "WARNING"
    assert line.startswith(f"note: {head} is useless with this model: ")
    assert "\n" not in line


def test_a_drafter_that_is_right_is_not_accused(speaking, caplog):
    load(speaking, caplog, draft=speaking)  # the target itself
    ((level, line),) = lines(caplog)
    assert level == "INFO"
    assert line.startswith("100% of the first drafts")


@pytest.mark.parametrize(
    ("accepted", "level", "said"),
    [(24, "WARNING", "useless"), (30, "WARNING", "mostly reaches over half"), (41, "INFO", "41%")],
)
def test_the_report_follows_the_share_of_accepted_drafts(caplog, accepted, level, said):
    with caplog.at_level(logging.INFO, logger="outrider.frontend.check_drafter"):
        _report("head", Probe(rounds=100, accepted_per_position=(accepted,)), seconds=1.0)
    ((found, line),) = lines(caplog)
    assert (found, said in line) == (level, True)


def test_the_check_leaves_no_trace_in_the_engine(target, speaking, tmp_path, caplog):
    head = write_head(tmp_path, target.config)
    answers = []
    for is_checked in (True, False):
        llm = load(speaking, caplog, draft=head, check_draft=is_checked)
        assert llm._engine.stats.prefix.queried_tokens == 0
        assert llm._engine.stats.rows.free == llm._engine.stats.rows.total
        (output,) = llm.generate("a bad cab", SamplingParams(temperature=0.0), use_tqdm=False)
        answers.append(output.outputs[0].token_ids)
    assert len(lines(caplog)) == 1  # of the first load
    assert answers[0] == answers[1]


def test_a_model_without_a_tokenizer_and_ngrams_are_not_checked(target, speaking, caplog):
    load(target.folder, caplog, draft=target.folder)
    load(speaking, caplog, draft="ngram")
    assert not lines(caplog)


def test_the_shipped_head_is_not_checked_unless_it_is_named():
    def found(name: str) -> DraftConfig:
        config = DraftConfig(drafter=name)
        place = {"model": DEFAULT_ALIAS, "folder": Path(DEFAULT_ALIAS)}
        return find_drafter(config, reporter=BarReporter(), **place)

    assert not found("auto").check
    assert found(str(shipped_head(DEFAULT_ALIAS).folder)).check


@pytest.mark.slow
def test_permuted_capture_layers_are_detected(smollm2_folder, tmp_path, caplog):
    good = shipped_head(DEFAULT_ALIAS).folder
    permuted = shutil.copytree(good, tmp_path / "permuted")
    fields = json.loads((good / "config.json").read_text())
    fields["eagle_aux_hidden_state_layer_ids"] = [27, 15, 2]  # the default, in reverse order
    (permuted / "config.json").write_text(json.dumps(fields))
    for head in (good, permuted):
        load(smollm2_folder, caplog, draft=head, max_model_len=128)
    assert [level for level, _ in lines(caplog)] == ["INFO", "WARNING"]
