"""Drafts with one module per depth. All modules run while catching up; proposing only reads.

Every row of draft KV is what a recomputation over the whole committed text would give, as soon as
all tokens that it depends on are committed: stale rows run again in the same window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import KVPool
from outrider.memory.upload import upload
from outrider.models.draft import Taps
from outrider.models.mtp.chain import ModuleChain
from outrider.plan.plan import ChunkRows, StepPlan, UniformRows
from outrider.plan.shape import StepShape
from outrider.plan.tree import DraftTree
from outrider.sampling.likely import likely_samples, likely_tokens
from outrider.sampling.table import SamplingTable
from outrider.spec.drafter import Outcome, chain
from outrider.spec.model_drafter import next_tokens
from outrider.spec.module_plans import WindowPlanner
from outrider.spec.windows import (
    Pairs,
    Windows,
    chunk_pairs,
    decoded_pairs,
    make_memory,
    newest_of_chunks,
    newest_of_decodes,
    run_in_chunks,
)
from outrider.step.fill import fill
from outrider.step.rows import RowTable
from outrider.wire.batch import RowAdmission
from outrider.wire.worker import DraftFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a step brought, as modules read it."""

    windows: Windows
    features: torch.Tensor  # [num_query, width] of the catch-up's query tokens
    following: torch.Tensor  # [chunk.tokens] the token after each chunk token
    newest: Pairs  # to be remembered, of all rows
    lengths: torch.Tensor  # [n] committed before the step
    num_new: torch.Tensor  # [n] committed by it


class ModuleDrafter:
    """Owns the modules' KV and, per row, its next drafts and its last committed pairs."""

    def __init__(
        self,
        modules: ModuleChain,
        *,
        kv: KVPool,
        attention: AttentionBackend,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
    ) -> None:
        assert len(modules) > 1, "one module that is repeated is a draft model"
        self._modules = modules
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        self._facts = facts
        rows, room = sampling.seed.shape[0], len(modules) - 1
        device = sampling.seed.device
        like = torch.empty(0, dtype=kv.layout.dtype, device=device)
        self._memory = make_memory(rows=rows, room=room, width=modules.facts.width, like=like)
        self._drafts = torch.zeros(rows, len(modules), dtype=torch.int64, device=device)
        self._planner = WindowPlanner(attention, largest, num_modules=len(modules), device=device)

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def taps(self) -> Taps:
        return self._modules.facts.taps

    def bind(self, shape: StepShape, uniform: UniformRows, chunk: ChunkRows) -> StepPlan:
        return self._planner.bind(shape, uniform, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """A new owner has no pairs yet: rows that the prefix cache served are never stale."""
        rows = [admission.row for admission in admissions]
        num = self._memory.num
        num.index_fill_(0, upload(rows, torch.int64, num.device), 0)

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The chain that was drafted while catching up, as far as each row's budget reaches."""
        uniform, num_drafts = plan.uniform, plan.shape.nodes - 1
        steps, _, nodes = uniform.budgets
        reach = torch.minimum(steps, nodes - 1)[:, None]  # [rows, 1]
        depth = torch.arange(1, num_drafts + 1, device=reach.device)
        drafts = self._drafts[:, :num_drafts].index_select(0, uniform.rows)
        root = table.last_tokens.index_select(0, uniform.rows)[:, None]
        return chain(torch.cat([root, drafts.masked_fill(depth > reach, -1)], dim=1))

    def observe(self, plan: StepPlan, outcome: Outcome, table: RowTable) -> None:
        """Run every module over what the target decided and what that made stale; draft anew."""
        catch_up: StepPlan = plan.draft
        torch.cat([plan.uniform.rows, plan.chunk.rows], out=catch_up.uniform.rows)
        seen = self._see(plan, outcome, catch_up)
        self._fill(catch_up, seen, table)
        tips = self._tips(catch_up, seen.windows)
        before, drafts = seen.features, catch_up.uniform.rows.new_zeros(tips.shape[0], 0)
        for index in range(len(self._modules)):
            if index:
                _shift(catch_up, seen, drafts, index)
            after = self._modules.run(index, catch_up, before, self._kv, self._attention)
            token = self._guess(plan, seen, after.index_select(0, tips), index)
            seen.windows.guess(index, token)
            drafts = torch.cat([drafts, token[:, None]], dim=1)
            before = after if self._modules.is_chained else seen.features
        self._drafts.index_copy_(0, catch_up.uniform.rows, drafts)
        self._memory.keep(catch_up.uniform.rows, seen.newest, seen.num_new)

    def _see(self, plan: StepPlan, outcome: Outcome, catch_up: StepPlan) -> _Seen:
        """Windows, features and what to remember, of decoding rows and then of chunks."""
        kept, chunk, shape = outcome.verdict.kept, plan.chunk, plan.shape
        old, num_old = self._memory.of(catch_up.uniform.rows)
        room, split = old.tokens.shape[1], [shape.rows, shape.chunk.rows]
        (decodes, chunks), width = _split(old, split), catch_up.shape.nodes
        following = next_tokens(chunk, outcome.chunk_choice)
        flat = outcome.features[shape.num_uniform :]  # [chunk.tokens, width]
        emitted = decoded_pairs(plan, outcome, decodes)
        num_new = torch.cat([kept + 1, chunk.counts])
        windows = self._windows(
            (emitted, chunks), chunk, following, num_old=num_old, num_new=num_new, width=width
        )
        column = windows.first[:, None] + torch.arange(width, device=kept.device)
        return _Seen(
            windows=windows,
            features=torch.cat(
                [
                    _taken(emitted.features, column[: shape.rows]),
                    _taken(chunks.features, column[shape.rows :]),
                    flat,
                ]
            ),
            following=following,
            newest=_joined(
                newest_of_decodes(emitted, kept, room),
                newest_of_chunks(chunk, following, flat, chunks),
            ),
            lengths=torch.cat([plan.uniform.lengths, chunk.starts]),
            num_new=num_new,
        )

    def _windows(
        self,
        pairs: tuple[Pairs, Pairs],  # of decoding rows with what they emitted; of chunks
        chunk: ChunkRows,
        following: torch.Tensor,  # [chunk.tokens]
        *,
        num_old: torch.Tensor,  # [n]
        num_new: torch.Tensor,  # [n]
        width: int,
    ) -> Windows:
        emitted, old = pairs
        room, num_rows = old.tokens.shape[1], emitted.tokens.shape[0]
        spare = len(self._modules) + 1  # guesses, and one column that nobody reads
        columns = emitted.tokens.shape[1] - room + spare
        tokens = torch.cat(
            [
                torch.nn.functional.pad(emitted.tokens, (0, spare)),
                chunk_pairs(chunk, following, old, columns),
            ]
        )
        # What a chunk brings is run as a chunk: its window ends before it.
        end = room + torch.cat([num_new[:num_rows], torch.zeros_like(num_new[num_rows:])])
        first = torch.maximum(room - num_old, end - width)
        return Windows(tokens=tokens, num_known=room + num_new, first=first, num_real=end - first)

    def _fill(self, catch_up: StepPlan, seen: _Seen, table: RowTable) -> None:
        """Place the windows and the chunks as the first module runs them."""
        windows, room = seen.windows, len(self._modules) - 1
        torch.add(seen.lengths - room, windows.first, out=catch_up.uniform.lengths)
        catch_up.chunk.tokens.copy_(seen.following)
        width = catch_up.shape.nodes
        nodes = chain(windows.run_by(0, width))
        is_idle = torch.arange(width, device=nodes.tokens.device) >= windows.num_real[:, None]
        # Idle nodes see no further than the first: what they would see may be past all pages.
        tree = DraftTree(
            tokens=nodes.tokens,
            parents=nodes.parents,
            depths=nodes.depths,
            ancestors=nodes.ancestors.masked_fill(is_idle, 1),
        )
        fill(
            catch_up,
            tree,
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
        )
        catch_up.queries.slots[: catch_up.shape.num_uniform].masked_fill_(is_idle.flatten(), 0)

    def _tips(self, catch_up: StepPlan, windows: Windows) -> torch.Tensor:  # [n]
        """The newest row of each: the last real node of a window, or the end of a chunk."""
        shape = catch_up.shape
        num_rows = shape.rows - shape.chunk.rows
        node = torch.arange(num_rows, device=windows.first.device) * shape.nodes
        ends = catch_up.sampled.index[shape.num_uniform :]
        return torch.cat([node + windows.num_real[:num_rows] - 1, ends])

    def _guess(
        self, plan: StepPlan, seen: _Seen, states: torch.Tensor, index: int
    ) -> torch.Tensor:  # states [n, width] -> [n]
        """The token that a module holds most likely to be the target's."""
        logits, ids = self._modules.scores(index, states), self._modules.target_ids
        if not plan.shape.warps.noise:
            return likely_tokens(logits, ids, 1).tokens.squeeze(1)
        catch_up: StepPlan = plan.draft
        return likely_samples(
            logits,
            ids,
            1,
            table=self._sampling,
            rows=catch_up.uniform.rows,
            positions=seen.lengths + seen.num_new + 1 + index,
        ).tokens.squeeze(1)


def _shift(catch_up: StepPlan, seen: _Seen, drafts: torch.Tensor, index: int) -> None:
    """Put the tokens in place that the next module runs; nothing else of the plan changes."""
    shape = catch_up.shape
    guesses = drafts[shape.rows - shape.chunk.rows :]
    in_chunks = run_in_chunks(catch_up.chunk, seen.following, guesses, index)
    in_windows = seen.windows.run_by(index, shape.nodes).flatten()
    torch.cat([in_windows, in_chunks], out=catch_up.queries.tokens)


def _split(pairs: Pairs, sizes: list[int]) -> tuple[Pairs, Pairs]:
    tokens, features = torch.split(pairs.tokens, sizes), torch.split(pairs.features, sizes)
    return (
        Pairs(tokens=tokens[0], features=features[0]),
        Pairs(tokens=tokens[1], features=features[1]),
    )


def _joined(first: Pairs, second: Pairs) -> Pairs:
    return Pairs(
        tokens=torch.cat([first.tokens, second.tokens]),
        features=torch.cat([first.features, second.features]),
    )


def _taken(features: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Features of these columns, flat: [rows, columns, width], [rows, n] -> [rows * n, width]."""
    index = column.clamp_max(features.shape[1] - 1)[:, :, None]
    return features.gather(1, index.expand(-1, -1, features.shape[2])).flatten(0, 1)
