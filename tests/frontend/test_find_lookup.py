"""Names such as "head+suffix": a drafter and a lookup."""

from pathlib import Path

import pytest

from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.frontend.find_drafter import find_drafter
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_progress import SilentReporter
from outrider.hub.shipped_heads import shipped_head

FOLDER = str(shipped_head(DEFAULT_ALIAS).folder)


def find(name: str, model: str = DEFAULT_ALIAS) -> DraftConfig:
    config, folder = DraftConfig(drafter=name), Path(model)
    return find_drafter(config, model=model, folder=folder, reporter=SilentReporter())


@pytest.mark.parametrize("name", ["head+suffix", "auto+suffix", f"{FOLDER}+suffix"])
def test_a_model_and_a_lookup_are_split(name):
    found = find(name)
    assert (found.drafter, found.lookup) == (FOLDER, "suffix")


def test_the_shipped_head_keeps_its_tree():
    assert (find("head+ngram").steps, find("head+ngram").lookup) == (find("auto").steps, "ngram")


@pytest.mark.parametrize(("name", "model"), [("none+suffix", DEFAULT_ALIAS), ("auto+suffix", "/x")])
def test_without_a_model_the_lookup_drafts_alone(name, model):
    found = find(name, model)
    assert (found.drafter, found.lookup) == ("suffix", "none")


@pytest.mark.parametrize(
    ("name", "model", "fix"),
    [
        ("ngram+suffix", DEFAULT_ALIAS, "use --draft suffix"),
        ("head+suffix", "/x", "--draft HEAD_FOLDER\\+suffix"),
        ("+suffix", DEFAULT_ALIAS, "use --draft suffix"),
    ],
)
def test_wrong_names_are_refused_with_the_fix(name, model, fix):
    with pytest.raises(ConfigError, match=fix):
        find(name, model)
