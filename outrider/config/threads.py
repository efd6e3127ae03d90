"""How idle OpenMP threads wait. Decided before torch is loaded, because its runtime reads it once."""

import logging
import os
import sys

_log = logging.getLogger(__name__)


def let_idle_threads_sleep() -> None:
    """Make threads sleep between parallel regions unless the user chose otherwise.

    By default they spin, and a spinning thread that loses its core to any other process stalls
    every region: on two busy cores a step of 25 ms took over a second (docs/lab/log.md).
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    if "torch" in sys.modules:
        _log.info("torch is loaded already; set OMP_WAIT_POLICY=passive to share cores well")
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"
