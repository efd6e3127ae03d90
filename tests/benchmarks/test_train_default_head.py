"""The recipe of the default head: heads of two runs become one."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from benchmarks.train_default_head import WEIGHTS, app


def write_head(folder, *, value, draft_ids=(0, 2, 5)):
    folder.mkdir()
    tensors = {
        "fc.weight": torch.full((2, 3), value, dtype=torch.float16),
        "d2t": torch.tensor(draft_ids),
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")


def run(*arguments):
    return CliRunner().invoke(app, ["mean", *map(str, arguments)])


def test_the_mean_of_two_heads_keeps_the_draft_tokens(tmp_path):
    write_head(tmp_path / "a", value=1.0)
    write_head(tmp_path / "b", value=2.0)
    assert run(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c").exit_code == 0
    found = load_file(tmp_path / "c" / WEIGHTS)
    assert torch.equal(found["fc.weight"], torch.full((2, 3), 1.5, dtype=torch.float16))
    assert found["d2t"].tolist() == [0, 2, 5]
    assert (tmp_path / "c" / "config.json").exists()


@pytest.mark.parametrize("draft_ids", [(0, 2, 6), (0, 2)])
def test_heads_of_other_draft_tokens_have_no_mean(tmp_path, draft_ids):
    write_head(tmp_path / "a", value=1.0)
    write_head(tmp_path / "b", value=2.0, draft_ids=draft_ids)
    assert run(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c").exit_code == 1
    assert not (tmp_path / "c").exists()
