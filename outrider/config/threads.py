"""How idle OpenMP threads wait. Chosen before torch is imported, because OpenMP reads it once."""

import logging
import os
import sys

_log = logging.getLogger(__name__)

SPINS = "1000"  # 20 us on AMD, 50 on Intel


def choose_wait_policy() -> None:
    """Let idle threads spin for a moment and then sleep, unless the user chose a policy.

    OpenMP's default spins for milliseconds. On a quiet machine that gains up to 3%, or 12% where
    layers are many operations of torch. Beside one busy process for each core it halves the speed,
    and beside more a step can take a second (docs/lab/log.md).
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    if "torch" in sys.modules:
        _log.info("torch was imported before; other processes may slow its threads, which spin")
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
