"""What every rank reads of a checkpoint: all of it together, and no more than its share."""

import re
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import load_file
from support.rank_models import PAGED, ROW_STATE, load_on
from support.thread_ranks import ThreadGroup

from outrider.errors import ConfigError
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import WHOLE

# Every rank has these completely. All other tensors are cut.
UNCUT = re.compile(
    r"norm|embed|mlp\.gate\.|block_sparse_moe\.gate\.|shared_expert_gate|q_a_proj|kv_a_proj"
    r"|ffn\.gate\.|attn\.w(q_a|kv)\.|compressor|indexer|hc_"
)
MODULE = "mtp."  # of a draft module, which other functions read
CASES = [(family, size) for family, sizes in (PAGED | ROW_STATE).items() for size in sizes]


@dataclass
class Reads:
    """How often each row or column of every tensor was read, by all ranks together."""

    whole: Counter = field(default_factory=Counter)  # reads of whole tensors
    parts: dict = field(default_factory=dict)  # [size of the cut dimension] by name
    bytes: Counter = field(default_factory=Counter)  # by rank

    def note(self, rank, name, cut, tensor, stored):
        self.bytes[rank] += tensor.nbytes
        if not cut.ranges:
            self.whole[name] += 1
            return
        counts = self.parts.setdefault(name, torch.zeros(stored.shape[cut.dim]))
        for first, last in cut.ranges:
            counts[first:last] += 1


@pytest.fixture
def read_on(rank_matrix, monkeypatch):
    """Loads a family on all ranks of a group and notes what they read."""

    def load(family, size):
        saved, reads, read = rank_matrix.family(family), Reads(), Checkpoint.read
        assert saved.theirs, "saved"
        stored = load_file(saved.folder / "model.safetensors")
        for ranks in ThreadGroup(size).ranks:

            def noted(self, name, cut=WHOLE, rank=ranks.rank):
                tensor, spelled = read(self, name, cut), self._nesting.stored_name(name)
                reads.note(rank, spelled, cut, tensor, stored[spelled])
                return tensor

            with monkeypatch.context() as patch:
                patch.setattr(Checkpoint, "read", noted)
                load_on(saved.folder, ranks)
        own = {name for name in stored if not name.startswith(MODULE)}
        return reads, own

    return load


@pytest.mark.fast_cases(10)
@pytest.mark.parametrize(("family", "size"), CASES)
def test_ranks_together_read_every_tensor_once(read_on, family, size):
    reads, stored = read_on(family, size)
    assert set(reads.whole) | set(reads.parts) == stored
    cut = {name for name in stored if not UNCUT.search(name)}
    assert set(reads.parts) == cut
    assert set(reads.whole.values()) == {size}
    for name, counts in reads.parts.items():
        times = set(counts.tolist())
        is_shared_head = re.search("[kv]_proj", name) and "mlp" not in name and size == 4
        assert times == {2.0 if is_shared_head and family != "llama-uneven" else 1.0}, name


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3-moe", "qwen3.5"])
def test_a_rank_reads_little_more_than_its_share(read_on, family):
    reads, _ = read_on(family, 2)
    (alone, _), most = read_on(family, 1), max(reads.bytes.values())
    assert most <= 0.6 * alone.bytes[0]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3-moe", "qwen3.5"])
def test_a_rank_stores_the_keys_and_values_of_its_heads(rank_matrix, family):
    whole = load_on(rank_matrix.models(family, 2).family.folder, ThreadGroup(1).ranks[0])
    alone = whole.layout(page_size=16, nodes=4).kv.page_bytes
    for target in rank_matrix.models(family, 2).targets:
        assert target.layout(page_size=16, nodes=4).kv.page_bytes <= 0.5 * alone


@pytest.mark.parametrize(
    ("family", "size", "reason"),
    [
        ("llama", 3, "4 attention heads with 2 key-value heads cannot be shared by 3 ranks; use"),
        ("llama-uneven", 6, "10 attention heads with 5 key-value heads cannot be shared by 6"),
        ("deepseek-v3", 5, "4 attention heads cannot be shared by 5 ranks; use .* at most 4"),
        ("qwen3.5", 3, "2 key heads of recurrent layers cannot be shared by 3 ranks; use"),
        ("deepseek-v4", 3, "2 output groups .* cannot be shared by 3 ranks; use"),
        ("glm4-moe", 8, "cannot be shared by 8 ranks; use"),
    ],
)
def test_what_ranks_cannot_share_is_refused_with_the_fix(rank_matrix, family, size, reason):
    saved = rank_matrix.family(family)
    assert saved.theirs, "saved"
    with pytest.raises(ConfigError, match=reason):
        load_on(saved.folder, ThreadGroup(size).ranks[0])
