"""Times what several ranks add to a step on the host: commands, exchanges, and whole steps."""

import multiprocessing
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore

from outrider import LLM, SamplingParams
from outrider.distributed.gloo_ranks import GlooRanks
from outrider.runtime.rank_messages import RunStep
from outrider.runtime.ranked_runner import RankedRunner
from outrider.wire.scheduled_batch import ScheduledBatch

_HERE = "127.0.0.1"
_SIZES = (256, 8 * 1024, 64 * 1024, 1024 * 1024)  # bytes; the second does not fit in one frame
_NUM_EXCHANGES, _NUM_TOKENS = 200, 64


def bench_ranks(size: int) -> None:
    """Print the table."""
    for line in (*_exchange_lines(size), *_step_lines(size)):
        print(line, flush=True)


def _exchange_lines(size: int) -> list[str]:
    store = TCPStore(_HERE, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_exchange, args=(rank, size, store.port), daemon=True)
        for rank in range(1, size)
    ]
    for process in others:
        process.start()
    times = _exchange(0, size, store.port)
    for process in others:
        process.join()
    return [
        f"{name}: median {_median_us(each):.0f} us, best {1e6 * min(each):.0f} us"
        for name, each in times.items()
    ]


def _exchange(rank: int, size: int, port: int) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    store = TCPStore(_HERE, port, is_master=False)
    ranks = GlooRanks(store, rank=rank, size=size, host=_HERE, timeout_s=60.0)
    found = {}
    for num_bytes in _SIZES:
        x = torch.zeros(num_bytes // 4)
        found[f"add_up of {num_bytes} bytes on {size} ranks"] = _time(partial(ranks.add_up_, x))
    found["comparison at the end of a step"] = _time(ranks.end_step)
    return found


def _time(call: Callable[[], None]) -> list[float]:
    times = []
    for _ in range(_NUM_EXCHANGES):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def _median_us(times: list[float]) -> float:
    return 1e6 * statistics.median(times)


def _step_lines(size: int) -> list[str]:
    """Whole steps of a tiny model, with one rank and with several, and the size of commands."""
    sent: list[ScheduledBatch] = []
    submit = RankedRunner.submit

    def submit_and_note(self: RankedRunner, batch: ScheduledBatch) -> object:
        sent.append(batch)
        return submit(self, batch)

    RankedRunner.submit = submit_and_note  # type: ignore[assignment,method-assign]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder))
        for ranks in (1, size):
            llm = LLM(folder, draft="none", device="cpu", tensor_parallel_size=ranks)
            steps = [(rows, _step_ms(llm, rows)) for rows in (1, 16)]
            lines += [f"tp {ranks}, {rows} rows: {ms:.2f} ms per step" for rows, ms in steps]
            del llm
    for batch in (sent[_NUM_TOKENS // 2], sent[-2]):
        message, times = RunStep(batch), []
        for _ in range(_NUM_EXCHANGES):
            began = time.perf_counter()
            pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            times.append(time.perf_counter() - began)
        num_bytes, rows = len(pickle.dumps(message)), len(batch.decodes.rows)
        lines.append(f"command of {rows} rows: {num_bytes} bytes, {_median_us(times):.0f} us")
    return lines


def _step_ms(llm: LLM, rows: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5, 6, 7, row]} for row in range(rows)]
    llm.generate(prompts, params, use_tqdm=False)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return 1e3 * (time.perf_counter() - began) / _NUM_TOKENS


def _write_model(folder: Path) -> None:
    """Random weights of eight layers: 17 exchanges in a step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
