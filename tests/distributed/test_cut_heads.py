"""The heads of draft modules on several ranks: each rank scores some tokens, by its own rows."""

import pytest
import torch
from support.modules import TABLES, add_modules, with_modules
from support.rank_models import load_on
from support.thread_ranks import ThreadGroup

from outrider.models.decoder import Decoder
from outrider.models.mtp.module_loader import load_modules

SIZE = 3  # 67 tokens: 23, 23 and 21


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target with three modules: with the target's head, a changed copy of it, and another."""
    folder = tmp_path_factory.mktemp("heads")
    own = with_modules(folder / "own", TABLES["deepseek"], num=1, body="llama-uneven")
    same = own.theirs.lm_head.weight.detach().clone()
    changed = same.clone()
    changed[40] += 1.0  # a token of rank 1: the other ranks find no difference
    other = torch.randn(same.shape, generator=torch.Generator().manual_seed(3))
    weights = [own.weights[0] | {"head": head} for head in (same, changed, other)]
    add_modules(own.folder, own.table, weights, num_layers=own.target.config.num_layers)
    own.theirs.save_pretrained(folder / "target")
    return folder / "target", own


def modules_on(made, ranks):
    folder, own = made
    target = load_on(folder, ranks)
    config = own.target.config
    target = Decoder(config, target._parts, share=target.share, ranks=target.ranks)
    return load_modules(own.folder, target=target, most=3, dtype="float32")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_scores_of_a_module_are_those_of_one_process(made, index):
    hidden = made[1].target.config.block.hidden
    state = torch.randn(5, hidden, generator=torch.Generator().manual_seed(1))
    group = ThreadGroup(SIZE)
    alone = modules_on(made, ThreadGroup(1).ranks[0]).scores(index, state)
    modules = [modules_on(made, ranks) for ranks in group.ranks]
    found = group.run(lambda rank: modules[rank].scores(index, state))
    for scores in found:
        assert torch.equal(scores, found[0])
        torch.testing.assert_close(scores, alone)
