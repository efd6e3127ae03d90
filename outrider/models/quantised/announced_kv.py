"""Says what a folder announces about keys and values. Their type is the user's choice alone.

Codes of one byte change answers a little, so a folder does not switch them on.
"""

import logging

from outrider.config.engine_config import KVDtype
from outrider.models.quantised.quantisation import Quantisation

_log = logging.getLogger(__name__)


def tell_of_kv_scheme(quantisation: Quantisation, kv_dtype: KVDtype) -> None:
    """Log a type that the weights were calibrated for and that is not used."""
    if quantisation.kv_cache == "another":
        _log.info(
            "config.json announces a type of keys and values that is not read (fp8 is): they have "
            "the type of activations unless --kv-cache-dtype says fp8"
        )
    elif quantisation.kv_cache == "fp8_e4m3" and kv_dtype != "fp8_e4m3":
        _log.info(
            "these weights were calibrated for keys and values in fp8: --kv-cache-dtype fp8 stores "
            "them in one byte, with the stored scales"
        )
