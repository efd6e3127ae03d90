"""Engines whose unused memory holds NaN or infinity before every step."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from outrider.engine.engine import Engine
from outrider.engine.prefix_cache.radix_tree import Node
from outrider.kv.kv_pool import KVPool, PagePool
from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.recurrent.recurrent_cache import RecurrentPool
from outrider.runtime.runner import Runner
from outrider.spec.model_drafter import ModelDrafter
from outrider.spec.mtp_drafter import ModuleDrafter
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, TREES, Models, sampling_of

POISONS = [math.nan, math.inf, -math.inf]
DRAFTS = [
    ("relative", "tree"),
    ("none", "chain"),
    ("eagle3", "tree"),
    ("mtp", "chain"),
    ("modules", "chain"),
    ("eagle", "chain"),
]


class PoisoningExecutor:
    """Fills pages, slots and row state that no request uses, then runs the step."""

    num_uncapturable = 0

    def __init__(self, engine: Engine, value: float) -> None:
        runner = engine._runner
        assert isinstance(runner, Runner)
        assert engine.facts.depth == 0, "the true lengths must be known when a step starts"
        self.num_filled = 0  # slots, over all steps
        self._executor = runner._executor
        self._state = runner._program.state
        self._drafter = runner._program.drafter._drafter
        self._scheduler = engine._scheduler
        self._lead = engine.facts.draft.lead
        self._value = value
        runner._executor = self

    @property
    def num_eager(self) -> int:
        return self._executor.num_eager

    def cover(self, shape: StepShape) -> StepShape:
        return self._executor.cover(shape)

    @torch.inference_mode()
    def run(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> Any:
        lengths = self._lengths(plan)
        for pool in self._state.pages._pools:
            is_target = pool is self._state.kv
            self._fill_pages(pool, lengths, ahead=0 if is_target else self._lead)
        self._fill_rows(lengths)
        return self._executor.run(program, plan)

    def _lengths(self, plan: StepPlan) -> dict[int, int]:
        """Cached tokens of every running row before this step."""
        lengths = {each.row: each.bound for each in self._scheduler._running.values()}
        for row in plan.decode.rows.tolist():
            lengths[row] = int(self._state.rows.lengths[row])
        lengths.update(zip(plan.chunk.rows.tolist(), plan.chunk.starts.tolist(), strict=True))
        return {row: length for row, length in lengths.items() if row}

    def _fill_pages(self, pool: PagePool, lengths: dict[int, int], *, ahead: int) -> None:
        if isinstance(pool, RecurrentPool):
            pool = pool._kv
        if isinstance(pool, KVPool):
            slots = self._unused_slots(lengths, pool.layout.page_size, ahead)
            self.num_filled += len(slots)
            for layer in pool.layers:
                layer.view(-1, *layer.shape[2:]).index_fill_(0, slots, self._value)
        if isinstance(pool, CompressedPool):
            self._fill_entries(pool, lengths)

    def _unused_slots(self, lengths: dict[int, int], page_size: int, ahead: int) -> torch.Tensor:
        is_used = torch.zeros(self._state.pages.num_pages, page_size, dtype=torch.bool)
        is_used[_cached_pages(self._scheduler.cache._tree.root)] = True
        for placement in self._scheduler._running.values():
            for position in range(lengths[placement.row] + ahead):
                page = placement.lease.pages[position // page_size]
                is_used[page, position % page_size] = True
        return (~is_used).flatten().nonzero().squeeze(1).to(self._state.pages.device)

    def _fill_entries(self, pool: CompressedPool, lengths: dict[int, int]) -> None:
        """Compressed blocks that have not ended, in pages that are not cached."""
        cached = _cached_pages(self._scheduler.cache._tree.root)
        for store, layer in zip(pool.layers, pool.layout.layers, strict=True):
            for part in store.paged:
                is_used = torch.zeros(part.shape[0], dtype=torch.bool)
                per_page = pool.layout.page_size // layer.ratio
                is_used.view(-1, per_page)[cached] = True
                for placement in self._scheduler._running.values():
                    for entry in range(lengths[placement.row] // layer.ratio):
                        page = placement.lease.pages[entry // per_page]
                        is_used[page * per_page + entry % per_page] = True
                unused = (~is_used).nonzero().squeeze(1).to(part.device)
                self.num_filled += len(unused)
                part.index_fill_(0, unused, self._value)

    def _fill_rows(self, lengths: dict[int, int]) -> None:
        """Row state of rows that no request has, or that start a text in this step."""
        num_rows = self._state.rows.lengths.shape[0]
        unused = [row for row in range(num_rows) if not lengths.get(row)]
        rows = torch.tensor(unused, device=self._state.pages.device)
        for pool in self._state.pages._pools:
            for part in _row_state(pool, num_rows):
                part.index_fill_(0, rows, self._value)
        if isinstance(self._drafter, ModelDrafter):
            self._drafter._hidden_states.index_fill_(0, rows, self._value)
        if isinstance(self._drafter, ModuleDrafter):
            self._drafter._pairs.pairs.aux_hidden_states.index_fill_(0, rows, self._value)


def answers(models: Models, draft: tuple[str, str], shape: Shape, value: float | None = None):
    """Tokens and log-probabilities of two runs of the same prompts: the second hits the cache."""
    drafter, tree = draft
    budget = TREES[tree]
    shape = replace(shape, pad=3, step_tokens=4 * budget.nodes + 7)
    engine = engine_of(models.target, shape, models.draft(drafter, budget))
    poison = PoisoningExecutor(engine, value) if value is not None else None
    asked = [
        make_submission(f"r{i}", prompt, sampling_of("sampled", i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    got = [run_all(engine, asked), run_all(engine, asked)]
    assert poison is None or poison.num_filled
    return [(each.tokens, each.logprobs, each.last.finish) for run in got for each in run.values()]


def _cached_pages(node: Node) -> list[int]:
    pages = list(node.pages)
    for child in node.children.values():
        pages += _cached_pages(child)
    return pages


def _row_state(pool: PagePool, num_rows: int) -> list[torch.Tensor]:
    """[table_rows, ...] each."""
    if isinstance(pool, CompressedPool):
        buffers = [each for store in pool.layers for each in store.ring_buffers]
        return [each.view(num_rows, -1, each.shape[1]) for each in buffers]
    if isinstance(pool, RecurrentPool):
        return [
            part
            for each in pool._states
            for part in (
                each.window.view(num_rows, -1, each.window.shape[1]),
                each.node_inputs,
                each.state,
            )
        ]
    return []
