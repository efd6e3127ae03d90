"""How many KV pages fit. Counted once, before anything is allocated."""

import torch

from outrider.config.engine import Auto
from outrider.errors import ConfigError

MEMORY_SHARE = 0.5  # of what is free after the weights are loaded
CPU_KV_BYTES = 4 << 30  # more than a CPU can keep busy


def count_pages(
    kv_tokens: int | Auto,
    *,
    page_size: int,
    page_bytes: int,
    most_pages: int,
    device: torch.device,
) -> int:
    """Usable pages: what the user asked for, or what memory allows up to `most_pages`.

    `most_pages` is the most that can ever be in use: every row at the end of its context.
    """
    if kv_tokens != "auto":
        return -(-kv_tokens // page_size)
    fitting = int(_free_bytes(device) * MEMORY_SHARE) // page_bytes
    if not fitting:
        raise ConfigError("no memory is left for the KV cache; free some or use a smaller model")
    return min(most_pages, fitting)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, 2 * CPU_KV_BYTES)
    return 2 * CPU_KV_BYTES
