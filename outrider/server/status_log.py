"""Every ten seconds: rates for the metrics and, while there is work, a log line of the load."""

import asyncio
import logging
from dataclasses import asdict, dataclass

from outrider.config.log_settings import facts
from outrider.server.metrics import Meter, ServerTotals

PERIOD_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a server did in a period."""

    running: int
    waiting: int
    prompt_tokens_per_s: float
    tokens_per_s: float
    accept_rate: float  # accepted / drafted
    accept_length: float  # mean tokens per round
    kv_cache_usage: float  # 0 to 1

    def __str__(self) -> str:
        return (
            f"running {self.running}, waiting {self.waiting}, "
            f"{self.prompt_tokens_per_s:.1f} prompt tokens/s, {self.tokens_per_s:.1f} tokens/s, "
            f"acceptance {self.accept_rate:.0%} ({self.accept_length:.2f} tokens per round), "
            f"KV cache {self.kv_cache_usage:.1%} in use"
        )


async def log_status(meter: Meter, period_s: float = PERIOD_S) -> None:
    """Report until cancelled. A period without work has no line."""
    before = meter.totals
    while True:
        await asyncio.sleep(period_s)
        now = meter.totals
        status = status_between(before, now, period_s)
        meter.note_rates(
            tokens_per_s=status.tokens_per_s,
            accept_length=status.accept_length,
            accept_rate=status.accept_rate,
        )
        if now != before or now.running or now.waiting:
            _log.info("%s", status, extra=facts(**asdict(status)))
        before = now


def status_between(before: ServerTotals, now: ServerTotals, seconds: float) -> Status:
    """The rates of a period from the totals at its ends."""
    rounds, drafted = now.rounds - before.rounds, now.drafted - before.drafted
    accepted = now.accepted - before.accepted
    return Status(
        running=now.running,
        waiting=now.waiting,
        prompt_tokens_per_s=(now.prompt_tokens - before.prompt_tokens) / seconds,
        tokens_per_s=(now.tokens - before.tokens) / seconds,
        accept_rate=accepted / drafted if drafted else 0.0,
        accept_length=1.0 + accepted / rounds if rounds else 1.0,
        kv_cache_usage=now.kv_cache_usage,
    )
