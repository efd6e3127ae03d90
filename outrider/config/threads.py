"""How idle OpenMP threads wait. Chosen before torch is imported, because OpenMP reads it once."""

import logging
import os
import sys

_log = logging.getLogger(__name__)

_BUSY_SHARE = 0.25  # of all cores, used by other processes during the last minute


def choose_wait_policy() -> None:
    """Let idle threads sleep when other processes use the cores, unless the user chose a policy.

    A spinning thread that loses its core stalls every parallel region. Measured on two cores, one
    row of the default model, ms per step (docs/lab/log.md): spinning 29 alone, 58 beside one busy
    process, over 500 beside several; sleeping 36, 43 and 70.
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    if os.getloadavg()[0] < _BUSY_SHARE * (os.cpu_count() or 1):
        return
    if "torch" in sys.modules:
        _log.info("other processes are busy; set OMP_WAIT_POLICY=passive before importing torch")
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"
