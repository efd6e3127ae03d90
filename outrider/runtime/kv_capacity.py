"""How many KV pages fit. Counted once, after everything else has allocated its memory."""

from dataclasses import dataclass

import torch

from outrider.config.engine_config import Auto
from outrider.config.process_heap import resident_bytes
from outrider.errors import ConfigError

CPU_MEMORY_SHARE = 0.5  # of what is free after the weights are loaded
CPU_KV_BYTES = 4 << 30  # more than a CPU can make use of
_GPU_SPARE = 0.05  # of a GPU, for graphs that are captured later
SNAPSHOT_SHARE = 0.2  # of the memory for KV, for snapshots of row state
_MOST_SNAPSHOTS = 8  # per row


@dataclass(frozen=True, slots=True)
class FixedPages:
    """As many usable pages as an earlier runner had: the scheduler counts on them."""

    num_pages: int
    num_window_pages: int


def count_pages(
    kv_tokens: int | Auto,
    *,
    page_size: int,
    page_bytes: int,
    most_pages: int,
    free_bytes: int,
) -> int:
    """Usable pages: what the user requested, or what memory allows up to `most_pages`.

    `most_pages` is the most that can ever be in use: every row at the end of its context.
    """
    fitting = max(free_bytes, 0) // page_bytes
    if not fitting:
        raise ConfigError(
            "no memory is left for the KV cache; free some, raise gpu_memory_utilization on a "
            "GPU, lower max_num_seqs or use a smaller model"
        )
    if kv_tokens == "auto":
        return min(most_pages, fitting)
    pages = -(-kv_tokens // page_size)
    if pages > fitting:
        raise ConfigError(
            f"a KV cache of {kv_tokens} tokens takes {pages * page_bytes / 1e9:.1f} GB and "
            f"{free_bytes / 1e9:.1f} GB are free; lower kv_tokens to {fitting * page_size}"
        )
    return pages


def count_snapshots(
    requested: int | Auto, *, row_bytes: int, max_rows: int, free_bytes: int, page_bytes: int = 0
) -> int:
    """Snapshots of row state: as many as were requested, or as fit into their share of memory.

    What the user wants for pages (`page_bytes`) is not theirs to take.
    """
    if not row_bytes:
        return 0
    if requested == "auto":
        share = min(int(free_bytes * SNAPSHOT_SHARE), free_bytes - page_bytes)
        return min(max(share, 0) // row_bytes, _MOST_SNAPSHOTS * max_rows)
    if requested * row_bytes > free_bytes:
        raise ConfigError(
            f"{requested} snapshots of row state take {requested * row_bytes / 1e9:.1f} GB and "
            f"{free_bytes / 1e9:.1f} GB are free; lower --row-snapshots to "
            f"{max(free_bytes, 0) // 2 // row_bytes}, which leaves half of them for pages"
        )
    return requested


def free_bytes(
    kv_tokens: int | Auto, *, device: torch.device, memory_share: float, num_sharing: int
) -> int:
    """Bytes that a KV cache may take; on a GPU, those free within the engine's share of memory.

    Processes that share the device have loaded their weights, and divide the rest.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = num_sharing * torch.cuda.memory_reserved(device)
        room = share_of_gpu(free=free, total=total, held=held, memory_share=memory_share)
        return room // num_sharing
    available = _available_bytes() // num_sharing
    if kv_tokens != "auto":
        return available
    return int(min(available, 2 * CPU_KV_BYTES // num_sharing) * CPU_MEMORY_SHARE)


def share_of_gpu(*, free: int, total: int, held: int, memory_share: float) -> int:
    """What an engine may take, if it holds that much already.

    What others hold is not part of its share: two engines of 0.4 fit on one GPU, as with vLLM.
    """
    spare = min(1 - memory_share, _GPU_SPARE) * total
    return int(min(memory_share * total - held, free - spare))


def held_bytes(device: torch.device) -> int:
    """Bytes that this process holds: allocated ones on a GPU, resident ones on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return resident_bytes()


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 2 * CPU_KV_BYTES
