"""Our engine without the text around it: token ids in, token ids out, as the peers are measured."""

import time
from collections.abc import Sequence
from pathlib import Path

from outrider.api.assemble import build_engine
from outrider.bench.asked import Lengths
from outrider.bench.trace import Step, Trace
from outrider.config.engine import CacheConfig, Dtype, EngineConfig, LimitsConfig
from outrider.wire.request import Limits, RequestUpdate, Submission
from outrider.wire.sampling import RowSampling

_GREEDY = RowSampling(seed=0, temperature=0.0)


class OurEngine:
    """Owns an engine with room for one batch, without a prefix cache: repetitions must work."""

    def __init__(self, folder: Path, *, dtype: Dtype, lengths: Lengths, max_batch: int) -> None:
        context = lengths.prompt + lengths.answer
        limits = LimitsConfig(
            context=context,
            rows=max_batch,
            step_tokens=max(LimitsConfig().step_tokens, 2 * max_batch),
        )
        # Two pages to spare for each row, so that all rows run at a time whatever the rounding.
        kv_tokens = max_batch * (context + 2 * CacheConfig().page_size)
        cache = CacheConfig(kv_tokens=kv_tokens, prefix=False)
        self._engine = build_engine(
            folder, EngineConfig(dtype=dtype, device="cpu", limits=limits, cache=cache)
        )

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        start = time.perf_counter()
        for index, prompt in enumerate(prompts):
            self._engine.add(_submission(index, prompt, max_tokens))
        steps = []
        while self._engine.has_work:
            updates = self._engine.step()
            if updates:
                tokens = _tokens_by_row(updates, len(prompts))
                steps.append(Step(time.perf_counter() - start, tokens))
        return tuple(steps)


def _submission(index: int, prompt: tuple[int, ...], max_tokens: int) -> Submission:
    return Submission(
        request_id=str(index),
        prompt=prompt,
        sampling=_GREEDY,
        limits=Limits(max_tokens=max_tokens, stop_ids=frozenset()),
    )


def _tokens_by_row(updates: tuple[RequestUpdate, ...], num_rows: int) -> tuple[int, ...]:
    tokens = [0] * num_rows
    for update in updates:
        tokens[int(update.request_id)] = len(update.tokens)
    return tuple(tokens)
