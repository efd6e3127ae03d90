"""Metrics for Prometheus. Names after the prefix are vLLM's where it has them."""

from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.frontend.request_state import RequestState
from outrider.server.learn_metrics import LearnMetrics
from outrider.server.metric_names import OUR_PREFIX, SGLANG, VLLM
from outrider.server.occupancy_window import OccupancyWindow
from outrider.wire.engine_stats import EngineStats, joined_replicas
from outrider.wire.sleep_level import SleepLevel
from outrider.wire.submission import Progress, RequestUpdate

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60, 120)
_GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_DRAFTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 63)


_RATES = {  # SGLang has them as gauges
    "prefix_cache_hit_rate": "Hits of queries, since the worker started.",
    "generation_tokens_per_second": "In the last 10 s.",
    "spec_decode_accept_length": "Tokens per round in the last 10 s.",
    "spec_decode_accept_rate": "Accepted of drafted tokens in the last 10 s.",
}
_SLEEP_STATES: dict[str, SleepLevel] = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTotals:
    """Load at one moment, and sums since the start."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0  # 0 to 1
    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class Meter:
    """Owns the counters of one server."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self._running = self._gauge("num_requests_running", "Requests that have a row.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for a row.")
        self._kv = self._gauge("kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.")
        self._occupancy = self._gauge("forward_occupancy", "Of 10 s with requests: device ran.")
        self._restarts = self._counter("worker_restarts", "Workers that died and were replaced.")
        self._suspects = self._counter("suspect_requests", "Ended: workers died in their steps.")
        self._busy = self._counter("device_busy_seconds", "Seconds the device has computed.")
        self._active = self._counter("engine_active_seconds", "Seconds with requests.")
        self._queried = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens served by the cache.")
        self._preemptions = self._counter("num_preemptions", "Requests that were preempted.")
        self._steps = self._counter("steps", "Steps that the device was given.")
        self._eager = self._counter("eager_steps", "Steps without a captured graph.")
        self._uncapturable = self._counter("unrecordable_shapes", "Shapes not captured.")
        self._failed = self._counter("failed_steps", "Steps whose requests ended with an error.")
        self._drafter = self._counter("drafter_failures", "Drafters that had to be given up.")
        self._transfers = self._counter("kv_transfers", "Prompts that travelled.", "outcome")
        self._moved = self._counter("kv_transfer_bytes", "Bytes read of other servers' KV.")
        self._prompt = self._counter("prompt_tokens", "Tokens of all prompts.")
        self._generated = self._counter("generation_tokens", "Tokens of all answers.")
        self._success = self._counter("request_success", "Requests that ended.", "finished_reason")
        self._rejected = self._counter("requests_rejected", "Requests refused for want of room.")
        self._first = self._histogram("time_to_first_token_seconds", "From arrival.", _SECONDS)
        self._gap = self._histogram("inter_token_latency_seconds", "Between tokens.", _GAPS_S)
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival.", _SECONDS)
        self._queued = self._histogram("request_queue_time_seconds", "Without a row.", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", "To a token.", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "After it.", _SECONDS)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self._answer_length = self._histogram(
            "request_generation_tokens", "Answer tokens.", _TOKENS
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds with a draft.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafts accepted.")
        self._accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by depth.", "position"
        )
        self._budget = self._histogram("spec_decode_draft_length", "Drafts of a round.", _DRAFTS)
        self._rates = {name: self._gauge(name, text) for name, text in _RATES.items()}
        self._sleep = self._states("engine_sleep_state", "1 for the current one.", "sleep_state")
        self.note_sleep(0)
        self._window = OccupancyWindow()
        self.forward_occupancy = 0.0  # share of the last seconds with requests
        self.totals = ServerTotals()
        self._latest: dict[int, EngineStats] = {}  # of the current worker of each replica
        self._worker_sums: dict[int, dict[Counter, float]] = {}  # the same, as totals

    @property
    def accept_length(self) -> float:
        """Mean tokens per round since the start: accepted drafts plus the bonus token."""
        totals = self.totals
        return 1.0 + totals.accepted / totals.rounds if totals.rounds else 1.0

    def open_learning(self) -> LearnMetrics:
        """Further metrics, for a server that learns."""
        return LearnMetrics(self._registry, self._model)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, under our names and those of other engines."""
        registry = self._registry
        return generate_latest(registry) + VLLM.render(registry) + SGLANG.render(registry)

    def note_stats(self, stats: EngineStats, *, num_in_flight: int, replica: int = 0) -> None:
        """Add what a worker has counted; its totals begin at 0 with every new worker."""
        self._latest[replica] = stats
        joined = joined_replicas(list(self._latest.values()))
        running, waiting = joined.queue.running, max(0, num_in_flight - joined.queue.running)
        used = 1 - joined.pages.free / joined.pages.total
        self.totals = replace(self.totals, running=running, waiting=waiting, kv_cache_usage=used)
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv.set(used)
        queried = joined.prefix.queried_tokens
        hit_rate = joined.prefix.hit_tokens / queried if queried else 0.0
        self._rates["prefix_cache_hit_rate"].set(hit_rate)
        work, faults = stats.work, stats.faults
        now = {
            self._busy: work.busy_s,
            self._active: work.active_s,
            self._steps: work.counts.steps,
            self._eager: work.counts.eager,
            self._uncapturable: work.counts.unrecordable,
            self._failed: faults.failed_steps,
            self._drafter: faults.drafter_failures,
            self._queried: stats.prefix.queried_tokens,
            self._hits: stats.prefix.hit_tokens,
            self._transfers.labels(self._model, "done"): stats.transfers.total_done,
            self._transfers.labels(self._model, "failed"): stats.transfers.total_failed,
            self._moved: stats.transfers.total_bytes,
        }
        before = self._worker_sums.get(replica, {})
        for counter, total in now.items():
            counter.inc(max(0, total - before.get(counter, 0)))
        self._worker_sums[replica] = now
        all_work = joined.work
        self.forward_occupancy = self._window.note(
            active_s=all_work.active_s, busy_s=all_work.busy_s
        )
        self._occupancy.set(self.forward_occupancy)

    def note_rates(self, *, tokens_per_s: float, accept_length: float, accept_rate: float) -> None:
        """What the server did in the last period."""
        self._rates["generation_tokens_per_second"].set(tokens_per_s)
        self._rates["spec_decode_accept_length"].set(accept_length)
        self._rates["spec_decode_accept_rate"].set(accept_rate)

    def note_waiting(self, num_waiting: int) -> None:
        """Requests wait while no worker reports them."""
        self._waiting.set(num_waiting)
        self.totals = replace(self.totals, waiting=num_waiting)

    def note_sleep(self, level: SleepLevel) -> None:
        """The engine sleeps at this level, or is awake at level 0."""
        for state, its_level in _SLEEP_STATES.items():
            self._sleep.labels(self._model, state).set(level == its_level)

    def note_worker_lost(self, replica: int = 0) -> None:
        """The worker died."""
        self._latest.pop(replica, None)
        self._worker_sums.pop(replica, None)
        running = sum(each.queue.running for each in self._latest.values())
        self._restarts.inc()
        self._running.set(running)
        self.totals = replace(self.totals, running=running)

    def note_suspect(self) -> None:
        """A request ended because workers died in its steps."""
        self._suspects.inc()

    def note_rejection(self) -> None:
        self._rejected.inc()

    def note_update(self, update: RequestUpdate, before: Progress, gap_s: float) -> None:
        """Note the update of one output; `before` is its progress before the update."""
        after, num_tokens = update.progress, len(update.tokens)
        self._generated.inc(num_tokens)
        self.totals = replace(self.totals, tokens=self.totals.tokens + num_tokens)
        self._preemptions.inc(after.preemptions - before.preemptions)
        if after.rounds == before.rounds:
            return  # the first token, or no token at all
        for _ in range(num_tokens):
            self._gap.observe(gap_s / num_tokens)
        self._note_round(before, after)

    def note_request(self, request: RequestState) -> None:
        """Note a request that has ended, even if its client has left."""
        usage, timing = request.usage, request.timing
        self._prompt.inc(usage.prompt_tokens)
        prompt_tokens = self.totals.prompt_tokens + usage.prompt_tokens
        self.totals = replace(self.totals, prompt_tokens=prompt_tokens)
        self._prompt_length.observe(usage.prompt_tokens)
        self._answer_length.observe(usage.completion_tokens)
        self._whole.observe(timing.total_s)
        if usage.completion_tokens:
            queued_s = min(request.outputs[0].queued_s, timing.first_token_s)
            self._first.observe(timing.first_token_s)
            self._queued.observe(queued_s)
            self._prefill.observe(timing.first_token_s - queued_s)
            self._decode.observe(timing.total_s - timing.first_token_s)
        for output in request.outputs:
            self._success.labels(self._model, output.ending.finish).inc()

    def _note_round(self, before: Progress, after: Progress) -> None:
        drafted = after.drafted - before.drafted
        totals = self.totals
        self.totals = replace(
            totals,
            rounds=totals.rounds + after.rounds - before.rounds,
            drafted=totals.drafted + drafted,
            accepted=totals.accepted + after.num_accepted - before.num_accepted,
        )
        self._budget.observe(drafted)
        if not drafted:
            return
        self._drafts.inc(after.rounds - before.rounds)
        self._drafted.inc(drafted)
        self._accepted.inc(after.num_accepted - before.num_accepted)
        old = (*before.accepted_per_depth, *[0] * len(after.accepted_per_depth))
        for position, (now, then) in enumerate(zip(after.accepted_per_depth, old, strict=False)):
            self._accepted_at.labels(self._model, position).inc(now - then)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(OUR_PREFIX + name, text, ["model_name"], registry=self._registry)
        return gauge.labels(self._model)

    def _states(self, name: str, text: str, label: str) -> Gauge:
        """A gauge with 1 for the current state and 0 for the others; the caller sets both."""
        return Gauge(OUR_PREFIX + name, text, ["model_name", label], registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter of this model. If it has further labels, the caller sets them."""
        names = ["model_name", *labels]
        counter = Counter(OUR_PREFIX + name, text, names, registry=self._registry)
        return counter if labels else counter.labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            OUR_PREFIX + name, text, ["model_name"], buckets=buckets, registry=self._registry
        )
        return histogram.labels(self._model)
