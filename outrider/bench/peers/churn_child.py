"""The process that runs all loads on one peer: a task in, a line of numbers out for each load.

A peer has this process to itself, so that it can fail, print, and take all of a GPU's memory.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from outrider.bench.peers.churn_peer import ChurnPeer, ChurnTask, PeerDraft, PeerLimits, PeerLoad


def main(task_path: Path, result_path: Path) -> None:
    """Load the peer, then warm it up for each load and time it."""
    task = read_task(json.loads(task_path.read_text(encoding="utf-8")))
    peer = load_peer(task)
    with result_path.open("a", encoding="utf-8") as results:
        for load in task.loads:
            peer.answer(task.prompts[: load.warm], rows=load.rows)
            began = time.perf_counter()
            emitted = peer.answer(task.prompts[: load.requests], rows=load.rows)
            print(emitted / (time.perf_counter() - began), file=results, flush=True)
    peer.close()


def read_task(fields: dict[str, Any]) -> ChurnTask:
    """The task that `asdict` made the fields of."""
    return ChurnTask(
        **{
            **fields,
            "draft": PeerDraft(**fields["draft"]),
            "limits": PeerLimits(**fields["limits"]),
            "loads": tuple(PeerLoad(**load) for load in fields["loads"]),
            "prompts": tuple(tuple(prompt) for prompt in fields["prompts"]),
        }
    )


def load_peer(task: ChurnTask) -> ChurnPeer:
    """The engine that the task names, with its model loaded."""
    if task.engine == "vllm":
        from outrider.bench.peers.vllm_churn import VllmChurn

        return VllmChurn(task)
    if task.engine == "sglang":
        from outrider.bench.peers.sglang_churn import SglangChurn

        return SglangChurn(task)
    assert task.engine == "transformers", "the catalogue has no other peers"
    from outrider.bench.peers.transformers_churn import TransformersChurn

    return TransformersChurn(task)


if __name__ == "__main__":  # peers start processes that import this file again
    main(Path(sys.argv[1]), Path(sys.argv[2]))
