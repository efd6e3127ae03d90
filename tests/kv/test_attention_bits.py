"""Attention on a CPU: the bits of a query depend on the query and its keys, and on nothing else."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, latent_model, make_case, run
from support.poisoned_attention import slots_of
from support.trees import tree_of

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.linear import fixed_product

MODELS = {
    "heads": Model(kv_heads=2, group=3, page_size=16),
    "one head": Model(kv_heads=1, group=1, head_dim=16, page_size=5),
    "bfloat16": Model(kv_heads=1, group=2, head_dim=32, page_size=16, dtype=torch.bfloat16),
    "latents": latent_model(heads=3, page_size=16),
    "library": Model(kv_heads=2, group=3, page_size=16),
    "library, latents": latent_model(heads=3, page_size=16),
    "compiled": Model(kv_heads=2, group=3, page_size=16),
    "compiled, one head": Model(kv_heads=1, group=1, head_dim=16, page_size=5),
}
LENGTH = 300  # keys of the text: three blocks
# Paths of the tree: 0 1 3 6 8, 0 2 4 7, 0 2 5
PARENTS = [-1, 0, 0, 1, 2, 2, 3, 4, 6]
PATH = [0, 2, 4, 7]


class Text:
    """The queries and the KV of one text; a step reads any part of it."""

    def __init__(self, model: Model, *, is_compiled: bool) -> None:
        generator = torch.Generator().manual_seed(3)
        self.model = model
        self.backend_kind = CompiledAttention if is_compiled else ReferenceAttention
        sizes = (LENGTH, model.heads, model.head_dim), (LENGTH, model.vectors, model.head_dim)
        self.query, self.stored = (
            torch.randn(size, generator=generator).to(model.dtype) for size in sizes
        )

    def read(self, case, row: int, places: dict[int, int], *, first: int) -> torch.Tensor:
        """What query tokens read if the row holds the text; places are {query: position}.

        Query `first` is the row's first token of this step, and is stored behind the text.
        """
        length = min(places.values())
        slots = {position: position for position in range(length)}
        slots |= {position: length + query - first for query, position in places.items()}
        layer, query = case.layer.clone(), case.query.clone()
        vectors = layer.flatten(0, 1)
        for position, slot in slots.items():
            vectors[slots_of(case, row, torch.tensor([slot]))] = self.stored[position]
        for place, position in places.items():
            query[place] = self.query[position]
        backend = self.backend_kind(page_size=self.model.page_size, dtype=self.model.dtype)
        return run(backend, replace(case, layer=layer, query=query))[list(places)]

    def alone(self, position: int) -> torch.Tensor:
        """What plain decoding reads at a position."""
        case = make_case(self.model, lengths=[position])
        return self.read(case, 1, {0: position}, first=0)[0]


@pytest.fixture(params=list(MODELS))
def text(request, monkeypatch) -> Text:
    if request.param.startswith("library"):  # as where nothing can be compiled
        monkeypatch.setattr(fixed_product, "why_no_tiles", lambda: "off")
    return Text(MODELS[request.param], is_compiled=request.param.startswith("compiled"))


@pytest.mark.parametrize("start", [0, 17, 120, 190, 291])
def test_a_chunk_reads_what_single_tokens_read(text, start):
    case = make_case(text.model, lengths=[5, 40], nodes=2, chunks={3: (start, 9), 4: (60, 3)})
    read = text.read(case, 3, {4 + i: start + i for i in range(9)}, first=4)
    for offset in (0, 1, 5, 8):
        assert torch.equal(read[offset], text.alone(start + offset))


@pytest.mark.parametrize("width", [2, 3, 4, 5, 9])
def test_a_chain_reads_what_single_tokens_read(text, width):
    start = 125  # the chain crosses the end of a block
    ancestors = torch.tensor([[(2 << node) - 1 for node in range(width)]] * 2)
    case = make_case(text.model, lengths=[250, start], nodes=width, ancestors=ancestors)
    shape = replace(case.shape, tree=replace(case.shape.tree, topk=1))
    places = {width + i: start + i for i in range(width)}
    read = text.read(replace(case, shape=shape), 2, places, first=width)
    for offset in range(width):
        assert torch.equal(read[offset], text.alone(start + offset))


@pytest.mark.parametrize("start", [0, 3, 29, 124, 125, 126, 127, 128, 253])
def test_a_node_of_a_tree_reads_what_its_path_reads_one_by_one(text, start):
    tree = tree_of([list(range(9))] * 2, [PARENTS] * 2)
    case = make_case(text.model, lengths=[start, 280], nodes=9, ancestors=tree.ancestors)
    read = text.read(case, 1, {node: start + depth for depth, node in enumerate(PATH)}, first=0)
    for depth in range(len(PATH)):
        assert torch.equal(read[depth], text.alone(start + depth))
