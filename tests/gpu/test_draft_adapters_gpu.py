"""Adapters of a draft head in captured graphs: the drafts of steps that run one by one."""

from dataclasses import replace

import pytest
import torch
from support.draft_adapters import FORMS, drafts_of, write_adapter
from support.engines import Shape, engine_of, make_submission
from support.heads import write_head
from support.matrix import TREES
from support.tiny import save_tiny

from outrider.hub.adapter_folder import find_adapter
from outrider.models.adapters.adapter_bank import BankSizes
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.model_config import read_config
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.adapter import NO_ADAPTER
from outrider.wire.row_sampling import RowSampling

CUDA = torch.device("cuda")
PROMPT = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25, 13, 21, 40]
GREEDY = RowSampling(seed=0, temperature=0.0, trace=True)


def engine(root, tree, **shape):
    bank = BankSizes(num_slots=2, max_rank=4, has_head=True)
    target = load_decoder(root / "target", dtype="float32", device=CUDA, bank=bank)
    head = load_head(
        root / "head", target=target, target_folder=root / "target", dtype="float32", device=CUDA
    )
    own = Shape(max_loras=bank.num_slots, max_rows=8, device="cuda", **shape)
    return engine_of(target, own, ModelDraft(model=head, budget=TREES[tree]))


@pytest.mark.parametrize("tree", ["chain", "tree"])
@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_graphs_draft_through_the_adapters_of_their_rows(algorithm, tree, tmp_path):
    save_tiny("llama", tmp_path / "target")
    config = read_config(tmp_path / "target")
    write_head(tmp_path / "head", config, algorithm=algorithm, seed=4)
    adapters = {"none": NO_ADAPTER}
    for seed, (name, modules) in enumerate(FORMS.items()):
        write_adapter(tmp_path / name / "draft", tmp_path / "head", modules, seed=seed)
        adapters[name] = find_adapter(tmp_path / name)
    requests = [
        replace(make_submission(name, PROMPT, GREEDY), adapter=adapter)
        for name, adapter in adapters.items()
    ]
    eager = drafts_of(engine(tmp_path, tree, pad=4), requests)
    assert drafts_of(engine(tmp_path, tree, executor="graph", pad=4), requests) == eager
    assert len({str(tokens) for tokens, _ in eager.values()}) == 1, "drafts change no token"
    assert len({str(trees) for _, trees in eager.values()}) == 3, "every adapter shows"
