"""A process that runs cases of one part, and writes a line of JSON before and after each."""

import json
import random
import sys
import time
import traceback

from hostile.parts import CaseReport, load_part

_SHOWN = 3000  # characters of a traceback


def case_seed(campaign: int, index: int) -> int:
    """The seed of one case of a campaign; small enough to be typed."""
    return random.Random(f"{campaign}/{index}").getrandbits(40)


def run_cases(part: str, *, campaign: int, first: int, stride: int, seconds: float) -> None:
    """Cases `first`, `first + stride`, ... until the time is up, and one at least."""
    run_case, index = load_part(part), first
    end = time.monotonic() + seconds
    while index == first or time.monotonic() < end:
        seed = case_seed(campaign, index)
        _write({"begin": seed, "index": index})
        report = guard_case(run_case, seed)
        _write({"end": seed, "counts": report.counts, "failures": report.failures})
        index += stride


def guard_case(run_case, seed: int) -> CaseReport:
    """The report of a case. What it raises is a failure of the case."""
    try:
        return run_case(seed)
    except Exception:
        return CaseReport(failures=[traceback.format_exc()[-_SHOWN:]])


def _write(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
