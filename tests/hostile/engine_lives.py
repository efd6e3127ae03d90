"""Random engine lives: whatever runs beside a request, it is answered as it is alone and plain."""

from dataclasses import dataclass, replace
from random import Random

from support import tiny
from support.engines import Shape, engine_of
from support.faults import break_steps
from support.windowed_chats import fewest_window_tokens

from hostile.life_models import (
    FAMILIES,
    NUM_MODULES,
    RECURRENT,
    V4,
    V4_DSPARK,
    V4_MODULE,
    LifeModels,
    life_models,
)
from hostile.life_requests import NEVER, Arrival, draw_arrivals
from hostile.near_ties import is_near_tie
from hostile.parts import CaseReport
from outrider.engine.engine import Engine
from outrider.errors import RequestError
from outrider.runtime.draft_kinds import DraftKind
from outrider.wire.draft_budget import Budget
from outrider.wire.submission import RequestUpdate, Submission

_MAX_STEPS = 20_000
FAULT = "a step failed with Fault"
_ATOL = 2e-3  # of log-probabilities


@dataclass
class Heard:
    """Everything the engine said about one request."""

    updates: list[RequestUpdate]

    @property
    def tokens(self) -> list[int]:
        return [token for update in self.updates for token in update.tokens]

    @property
    def finish(self) -> str:
        return self.updates[-1].finish if self.updates else "running"

    @property
    def reason(self) -> str:
        return self.updates[-1].reason if self.updates else ""

    @property
    def logprobs(self) -> list[float]:
        return [each.chosen for update in self.updates for each in update.logprobs]

    @property
    def prompt_logprobs(self) -> list[float]:
        return [each.chosen for update in self.updates for each in update.prompt_logprobs]


def run_case(seed: int) -> CaseReport:
    """One life: an engine of random shape, and random requests."""
    rng = Random(seed)
    family = rng.choice(FAMILIES)
    models = life_models(family)
    drafter = rng.choice(list(models.drafts))
    draft = _draw_draft(rng, models, drafter)
    shape = _draw_windows(rng, models, draft, _draw_shape(rng, models, draft))
    arrivals = draw_arrivals(rng, shape.max_context)
    engine = engine_of(models.target, shape, draft)
    report = CaseReport()
    report.counts.update({f"lives of {_kind(family)}": 1})
    has_faults = not models.has_row_state and rng.random() < 0.1
    if has_faults:
        _break_some_steps(rng, engine)
    heard = _live(engine, arrivals, report)
    found = [*_leaks(engine, has_faults), *_wrong_answers(models, shape, heard, arrivals, report)]
    where = f"{family}, {drafter} {draft.facts.budget}, {shape}, faults: {has_faults}"
    report.failures += [f"{what} ({where})" for what in found]
    return report


def _kind(family: str) -> str:
    kinds = {
        "experts": (*tiny.SPARSE_FAMILIES, *tiny.GLM_FAMILIES),
        "latents": tiny.LATENT_FAMILIES,
    }
    kinds |= {"states": RECURRENT, "v4": (V4, V4_MODULE, V4_DSPARK)}
    return next((kind for kind, names in kinds.items() if family in names), "dense")


def _break_some_steps(rng: Random, engine: Engine) -> None:
    """Let one or two steps fail, and leave values that are no numbers in their pages."""
    steps = [{rng.randint(1, 40)}, set()]
    rng.shuffle(steps)
    break_steps(engine, at_submit=steps[0], at_wait=steps[1] or {rng.randint(1, 60)})


def _draw_draft(rng: Random, models: LifeModels, drafter: str) -> DraftKind:
    steps = rng.randint(1, 4)  # as deep as the blocks of all heads
    topk = 1 if models.has_row_state or rng.random() < 0.4 else rng.randint(2, 5)
    nodes = steps + 1 if topk == 1 else rng.randint(2, min(1 + steps * topk, 24))
    if drafter == "modules":
        steps, topk = rng.randint(1, NUM_MODULES), 1
        nodes = steps + 1
    draft = models.drafts[drafter](Budget(steps=steps, topk=topk, nodes=nodes))
    if drafter != "none" and rng.random() < 0.3:
        draft = replace(draft, is_adaptive=True)  # type: ignore[type-var]
    return draft


def _draw_shape(rng: Random, models: LifeModels, draft: DraftKind) -> Shape:
    rows, context = rng.randint(1, 6), rng.choice([24, 40, 64, 96])
    page = 16 if models.has_row_state else rng.choice([1, 2, 4, 16, 64])
    least = context + 2 * draft.facts.budget.reach(draft.facts.lead) + page
    return Shape(
        page_size=page,
        pad=rng.choice([1, 3, 4]),
        executor=rng.choice(["eager", "eager", "tape"]),
        depth=rng.randint(0, 1),
        step_tokens=rows * draft.facts.budget.nodes + rng.choice([1, 7, 30, 60]),
        max_rows=rows,
        kv_tokens=rng.choice([least, 2 * least, rows * least]),
        max_context=context,
        prefix_cache=rng.random() < 0.8,
    )


def _draw_windows(rng: Random, models: LifeModels, draft: DraftKind, shape: Shape) -> Shape:
    """Room for all windows, or for those of one or two requests."""
    num_windows = rng.choice([0, 1, 1.2, 2])
    if models.has_row_state or not num_windows:
        return shape
    fewest = fewest_window_tokens(models.target, shape, draft)
    return replace(shape, window_tokens=int(num_windows * fewest))


def _live(engine: Engine, arrivals: list[Arrival], report: CaseReport) -> dict[str, Heard]:
    """Run a life to its end; returns what was said about every request that was taken."""
    heard: dict[str, Heard] = {}
    aborted: set[str] = set()
    pending, now = list(arrivals), 0
    while pending or engine.has_work:
        for arrival in [each for each in pending if each.at <= now]:
            pending.remove(arrival)
            _add(engine, arrival.submission, heard, report)
        for arrival in arrivals:
            name = arrival.submission.request_id
            if arrival.abort_at == now and name in heard and heard[name].finish == "running":
                engine.abort(name)
                aborted.add(name)
        for update in engine.step():
            assert update.request_id not in aborted, f"{update.request_id} was aborted"
            entry = heard[update.request_id]
            assert entry.finish == "running", f"{update.request_id} has ended before"
            entry.updates.append(update)
        now += 1
        assert now < _MAX_STEPS, "the engine does not come to an end"
    for entry in heard.values():
        if entry.updates:
            report.counts["preemptions"] += entry.updates[-1].progress.preemptions
            report.counts["accepted"] += entry.updates[-1].progress.num_accepted
    report.counts["aborted"] += len(aborted)
    return heard


def _add(
    engine: Engine, submission: Submission, heard: dict[str, Heard], report: CaseReport
) -> None:
    try:
        engine.add(submission)
    except RequestError:
        report.counts["refused"] += 1
    else:
        heard[submission.request_id] = Heard([])
        report.counts["requests"] += 1


def _leaks(engine: Engine, has_faults: bool) -> list[str]:
    """What is still in use after everything has ended."""
    stats = engine.stats
    found = []
    for what, capacity in (("pages", stats.pages), ("rows", stats.rows)):
        if capacity.free != capacity.total:
            found.append(f"{capacity.total - capacity.free} {what} leaked")
    if stats.queue.waiting or stats.queue.running:
        found.append(f"requests are left over: {stats.queue}")
    if not has_faults and (stats.faults.failed_steps or stats.faults.drafter_failures):
        found.append(f"steps or drafters failed: {stats.faults}")
    return found


def _wrong_answers(
    models: LifeModels,
    shape: Shape,
    heard: dict[str, Heard],
    arrivals: list[Arrival],
    report: CaseReport,
) -> list[str]:
    """Differences from a plain engine that answers one request at a time."""
    page = shape.page_size
    alone = engine_of(
        models.target, Shape(page_size=page, max_context=shape.max_context, prefix_cache=False)
    )
    found = []
    for arrival in arrivals:
        name = arrival.submission.request_id
        if name not in heard:
            continue
        right = Heard([])
        alone.add(arrival.submission)
        while alone.has_work:
            right.updates += alone.step()
        if FAULT in heard[name].reason:
            report.counts["ended by a fault"] += 1
            continue
        wrong = _difference(heard[name], right, is_whole=arrival.abort_at == NEVER)
        if wrong and is_near_tie(
            models.theirs, arrival.submission, heard[name].tokens, right.tokens
        ):
            report.counts["near ties"] += 1
        elif wrong:
            found.append(f"{name}: {wrong}; {arrival.submission}")
        report.counts["tokens"] += len(right.tokens)
    return found


def _difference(got: Heard, right: Heard, *, is_whole: bool) -> str:
    """How the answer differs from the right one; an aborted one may be shorter."""
    if is_whole and got.finish == "running":
        return "was never ended"
    if got.finish == "error":
        return f"ended with an error: {got.reason}"
    num = len(got.tokens)
    expected = right.tokens if got.finish != "running" else right.tokens[:num]
    if got.tokens != expected:
        return f"{got.tokens} instead of {right.tokens}"
    if got.finish != "running" and got.finish != right.finish:
        return f"finish {got.finish} instead of {right.finish}"
    pairs = [("logprobs", got.logprobs, right.logprobs[: len(got.logprobs)])]
    if got.updates:
        pairs.append(("prompt logprobs", got.prompt_logprobs, right.prompt_logprobs))
    for what, ours, theirs in pairs:
        if len(ours) != len(theirs):
            return f"{len(ours)} {what} instead of {len(theirs)}"
        if any(abs(a - b) > _ATOL for a, b in zip(ours, theirs, strict=True)):
            return f"{what} {ours} instead of {theirs}"
    return ""
