"""The logits of one text, computed in many ways. On a CPU all of them have the same bits."""

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from outrider.kv.choose_attention import choose_attention
from outrider.kv.head_shape import HeadShape
from outrider.kv.kv_pool import PageFamily
from outrider.models.cache_layout import CacheRoom
from outrider.models.model_config import LatentConfig
from outrider.models.target import load_target
from outrider.ops.tree.draft_tree import DraftTree
from outrider.step.fill_plan import fill, resolve_lengths
from support.row_harness import CPU, PAGE_SIZE, RowHarness, planner_of
from support.steps import NO_FLAGS, batch_of
from support.trees import tree_of

NODES = 9


class TextBits:
    """A target with five rows; row 1 gets the text one token at a time, others otherwise."""

    def __init__(self, folder: Path, text: list[int], *, vocab: int, dtype: str = "float32"):
        self.text, self.vocab, self.rng = text, vocab, random.Random(len(text))
        reach = len(text) + NODES
        decoder = load_target(folder, dtype=dtype, device=CPU)
        layout = decoder.layout(page_size=PAGE_SIZE, nodes=NODES)
        users = [
            HeadShape(heads=each.heads, head_dim=1, is_latent=isinstance(each, LatentConfig))
            for each in layout.heads
        ]
        backend = choose_attention(
            "auto", CPU, page_size=PAGE_SIZE, dtype=decoder.dtype, users=users
        )
        pages = PageFamily(num_pages=1, device=CPU)
        cache = layout.open(CacheRoom(pages=pages, table_rows=6, backend=backend))
        planner, table, num = planner_of(
            cache.attention, nodes=NODES, rows=5, reach=reach, most_chunk=3 * reach
        )
        pages.resize(num)
        self.harness = RowHarness(decoder, cache.attention, planner, table, cache.pool)

    def one_by_one(self) -> torch.Tensor:  # [text, vocab]
        """Plain decoding of the whole text, alone."""
        steps = [self._run({1: (at, [token])}, {}) for at, token in enumerate(self.text)]
        return torch.cat(steps)

    def in_chunks(self, size: int, row: int = 2) -> torch.Tensor:  # [text, vocab]
        """The text as a prompt in chunks of that size."""
        starts = range(0, len(self.text), size)
        return torch.cat([self._run({}, {row: (s, self.text[s : s + size])}) for s in starts])

    def in_chains(self, width: int, first: int) -> torch.Tensor:  # [text - first, vocab]
        """A prompt, then chains of drafts that are all accepted."""
        self._run({}, {3: (0, self.text[:first])})
        starts = range(first, len(self.text) - width + 1, width)
        return torch.cat(
            [self._run({3: (at, self.text[at : at + width])}, {}, nodes=width) for at in starts]
        )

    def beside_others(self, at: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Positions and logits of row 3 in steps with decode rows and chunks of other texts."""
        other = [self.rng.randrange(self.vocab) for _ in range(at)]
        texts = {3: (0, self.text[:at]), 4: (0, other), 5: (0, other[: at // 2])}
        self._run({}, texts)
        token = self.text[at]
        yield at, self._run({4: (at, [1]), 3: (at, [token])}, {})[1]
        self._run({}, texts)
        yield at, self._run({3: (at, [token])}, {5: (at // 2, other[at // 2 :])})[0]
        self._run({}, texts)
        rows = {4: (at, [2]), 5: (at // 2, [3]), 3: (at, [token])}
        yield at, self._run(rows, {2: (0, self.text)})[2]

    def in_a_tree(self, at: int, seed: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Positions and logits of the nodes of a random tree that are the text after `at`."""
        tree, path = self._tree(at, random.Random(seed))
        self._run({}, {4: (0, self.text[:at])})
        self.harness.table.lengths[4] = at
        batch = batch_of({4: at}, {}, nodes=NODES, topk=NODES)
        plan = self.harness.planner.plan(batch, sampling_flags=NO_FLAGS)
        logits = self._program(plan, tree)
        for depth, node in enumerate(path):
            yield at + depth, logits[node]

    def _tree(self, at: int, rng: random.Random) -> tuple[DraftTree, list[int]]:
        tokens, parents, path = [self.text[at]], [-1], [0]
        while len(tokens) < NODES:
            is_text = rng.random() < 0.4 and at + len(path) < len(self.text)
            parent = path[-1] if is_text else rng.randrange(len(tokens))
            token = self.text[at + len(path)] if is_text else rng.randrange(self.vocab)
            if is_text:
                path.append(len(tokens))
            tokens.append(token)
            parents.append(parent)
        return tree_of([tokens], [parents]), path

    def _run(self, decodes, chunks, *, nodes: int = 1) -> torch.Tensor:
        return self.harness.run(decodes, chunks, nodes=nodes)

    def _program(self, plan, tree: DraftTree) -> torch.Tensor:
        harness = self.harness
        with torch.inference_mode():
            resolve_lengths(plan, harness.table)
            attention = harness.attention
            fill(plan, tree, table=harness.table, attention=attention, page_size=PAGE_SIZE)
            hidden_states = harness.decoder.hidden_states(plan, harness.pool, attention)
            return harness.decoder.logits(hidden_states)


def num_different(a: torch.Tensor, b: torch.Tensor) -> int:
    """Rows of logits whose bits differ."""
    assert a.shape == b.shape
    return int((a != b).any(-1).sum())
