"""Requests on paper at the prices of an H200: what plain, fixed and adaptive drafting give.

Prices are of the 8B shape in bf16 with an EAGLE-3 head, read off the tables of docs/lab/log.md
("never slower, in one table", "prompts beside decode rows"). Loads are those of
`python -m benchmarks never-slower`.
"""

import itertools
import random
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

from outrider.engine.engine import Engine
from outrider.wire.draft_budget import FEWEST_SHARING, Budget, ladder_of
from outrider.wire.runner_facts import RungCost
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult
from support.paper import PaperResult, PaperRunner, facts, submission

Kind = Literal["steady", "churn"]
ADAPTIVE, PLAIN = "adaptive", "plain"
WHOLE = Budget(steps=4, nodes=5)
MOST_ROWS = 256
# Milliseconds of the target by query tokens.
TARGET_MS = [
    *((1, 4.20), (8, 4.30), (16, 4.42), (32, 4.60), (64, 5.20), (96, 5.5), (128, 6.2), (160, 6.6)),
    *((192, 7.3), (256, 9.0), (320, 10.5), (384, 11.8), (480, 13.5), (512, 15.0), (768, 22.3)),
    *((1536, 42.0), (4096, 110.0)),
]
ROW_MS = 0.004  # attention of a row
STEP_MS, ROWS_OF_TWICE = 0.26, 200  # a draft step, and the rows with which it takes twice as long
IDLE_MS, IDLE_PROMPT_MS = 0.05, 0.0005  # a head that does not draft: a step, a prompt token


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What comes, and what a step costs besides its query tokens."""

    prompts: tuple[int, int] = (43, 129)  # least and most tokens
    answer: int = 64  # tokens
    noise: float = 0.01  # relative spread of measured seconds
    context_ms: float = 0.0  # for 1,000 cached tokens of decode rows
    chunk_ms: float = 0.0  # for a prompt token times 1,000,000 tokens before it
    first_ms: float = 0.0  # that the first step with decode rows takes longer


SHORT = Requests()


def step_ms(*, rows: int, tokens: int, prompt: int, draft_steps: int, has_head: bool) -> float:
    """A step of decode rows with so many query tokens, beside so many prompt tokens."""
    drafting_ms = STEP_MS * draft_steps * (1 + rows / ROWS_OF_TWICE)
    drafting_ms += 0.0015 * (tokens + prompt) if draft_steps else 0.0002 * tokens
    head_ms = IDLE_MS + IDLE_PROMPT_MS * prompt + drafting_ms
    return _target_ms(tokens + prompt) + ROW_MS * rows + (head_ms if has_head else 0.0)


def _target_ms(tokens: int) -> float:
    after = min(max(bisect_left(TARGET_MS, (tokens, 0.0)), 1), len(TARGET_MS) - 1)
    (fewer, low), (more, high) = TARGET_MS[after - 1], TARGET_MS[after]
    return low + (high - low) * (tokens - fewer) / (more - fewer)


class Card(PaperRunner):
    """Accepts every draft after an accepted one with the same chance; counts seconds and tokens."""

    def prepare(self, chance: float, *, has_head: bool, requests: Requests = SHORT) -> None:
        self.chance, self.has_head, self.requests = chance, has_head, requests
        self.clock, self.late_ms = random.Random(7), requests.first_ms
        self.begin()

    def begin(self) -> None:
        self.spent_ms, self.num_emitted = 0.0, 0

    def submit(self, batch: ScheduledBatch) -> PaperResult:
        self._update_tables(batch)
        decodes, num_rows = batch.decodes, len(batch.decodes)
        num_drafts = min(decodes.most_drafts, sum(each.nodes - 1 for each in decodes.budgets))
        spent_ms = step_ms(
            rows=num_rows,
            tokens=num_rows + num_drafts,
            prompt=sum(len(chunk.tokens) for chunk in batch.chunks),
            draft_steps=max((each.steps for each in decodes.budgets), default=0),
            has_head=self.has_head,
        )
        spent_ms += self._other_ms(batch)
        self.spent_ms += spent_ms
        tokens = [self._round(row, num_drafts / num_rows) for row in decodes.rows]
        for chunk in batch.chunks:
            self.lengths[chunk.row] = chunk.start + len(chunk.tokens)
            tokens.append((1,) if chunk.is_last else ())
        self.num_emitted += sum(map(len, tokens))
        return PaperResult(
            StepResult(
                step=batch.step,
                tokens=tokens,
                drafted=[each.nodes - 1 for each in decodes.budgets] + [0] * len(batch.chunks),
                details={},
                busy_s=spent_ms / 1e3 * max(0.5, self.clock.gauss(1.0, self.requests.noise)),
                has_drafter_failed=False,
            )
        )

    def _other_ms(self, batch: ScheduledBatch) -> float:
        """What does not follow from the number of query tokens."""
        requests, late_ms = self.requests, self.late_ms if batch.decodes.rows else 0.0
        self.late_ms -= late_ms
        cached = sum(self.lengths[row] for row in batch.decodes.rows)
        before = sum(
            len(each.tokens) * (each.start + len(each.tokens) / 2) for each in batch.chunks
        )
        return requests.context_ms * cached / 1e3 + requests.chunk_ms * before / 1e6 + late_ms

    def _round(self, row: int, drafts: float) -> tuple[int, ...]:
        most = 1 + int(drafts) + (self.rng.random() < drafts % 1)
        num = 1
        while num < most and self.rng.random() < self.chance:
            num += 1
        self.lengths[row] += num
        return (1,) * num


def tokens_per_s(
    rows: int,
    kind: Kind,
    chance: float,
    way: str | int,
    *,
    seed: int,
    requests: Requests = SHORT,
    least_ms: float = 1500,
) -> float:
    """A load of 1.5 s and more on a fresh engine; `way` may be the length of a fixed chain."""
    steps = {ADAPTIVE: WHOLE.steps, PLAIN: 0}.get(way, way)
    known = facts(
        nodes=1 + steps,
        depth=1,
        max_rows=MOST_ROWS,
        step_tokens=2048,
        num_pages=300_000,
        page_size=16,
        max_context=1 << 16,
        max_queued=MOST_ROWS,
        prefix_cache=False,
        is_adaptive=way == ADAPTIVE,
    )
    costs = tuple(_dummy_runs()) if way == ADAPTIVE else ()
    known = replace(known, max_chunks=8, draft=replace(known.draft, is_ranked=True, costs=costs))
    card = Card(known, random.Random(seed))
    card.prepare(chance, has_head=way != PLAIN, requests=requests)
    end_ms = least_ms * (1 + rows / 128)
    _run(Engine(card, known), card, rows, kind, random.Random(seed + 3), end_ms)
    return 1e3 * card.num_emitted / card.spent_ms


def _dummy_runs():
    """What they measure: plain steps, the fewest drafts and all of them."""
    for rows in (1 << octave for octave in range(MOST_ROWS.bit_length())):
        ladder = ladder_of(WHOLE, is_shared=rows >= FEWEST_SHARING)
        for rung in (ladder[0], ladder[1], ladder[-1]):
            tokens, steps = rows * rung.nodes, rung.tree.steps
            took_ms = step_ms(rows=rows, tokens=tokens, prompt=0, draft_steps=steps, has_head=True)
            yield RungCost(rows=rows, drafts=rung.drafts, seconds=took_ms / 1e3)


def _run(
    engine: Engine, card: Card, rows: int, kind: Kind, rng: random.Random, end_ms: float
) -> None:
    """Steady loads count from the step on in which all rows decode."""
    num_live, begun, is_counted = 0, set(), kind == "churn"
    requests = (
        submission(
            str(number),
            [1] * rng.randint(*card.requests.prompts),
            max_tokens=(
                max(1, round(card.requests.answer * min((number + 1) / rows, 1)))
                if is_counted
                else 3000
            ),
        )
        for number in itertools.count()
    )
    while card.spent_ms < end_ms:
        for request in itertools.islice(requests, rows - num_live):
            engine.add(request)
            num_live += 1
        for update in engine.step():
            num_live -= update.finish != "running"
            begun.add(update.request_id)
        if not is_counted and len(begun) >= rows:
            is_counted = True
            card.begin()
