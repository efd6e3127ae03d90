"""llama.cpp over the GGUF file that our weights are from: its own types, its own batches."""

import ctypes
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import llama_cpp
import numpy as np
import torch

from outrider.bench.offline.run_trace import Step, Trace
from outrider.config.engine_config import Dtype
from outrider.errors import ConfigError

_BATCH_TOKENS = 2048
_MOST_ROWS, _MOST_CONTEXT = 64, 1024  # of a sequence
_FILE_TYPES = {
    "float32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "float16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "int8": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _ignore(*_: object) -> None:
    """llama.cpp tells much about a model, and a table follows."""


class LlamaCppPeer:
    """Owns a model and its contexts, with the number of threads that torch has."""

    def __init__(self, gguf: Path, dtype: Dtype) -> None:
        self._model: ctypes.c_void_p | None = None
        llama_cpp.llama_log_set(_ignore, None)
        with tempfile.TemporaryDirectory() as folder:
            path = gguf if dtype == "packed" else _converted(gguf, dtype, Path(folder))
            parameters = llama_cpp.llama_model_default_params()
            self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ConfigError(f"llama.cpp cannot read {gguf}; leave it out with --peers")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)

    def __del__(self) -> None:
        if self._model:
            llama_cpp.llama_model_free(self._model)

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        rows, length = len(prompts), len(prompts[0])
        with closing(_Context(self._model, rows=rows, length=length + max_tokens)) as context:
            tokens, steps, began = prompts, [], time.perf_counter()
            for number in range(max_tokens):
                start = length + number - 1 if number else 0
                ends = context.decode(tokens, start=start)
                best = [context.best_token(end, self._vocab_size) for end in ends]
                steps.append(Step(time.perf_counter() - began, (1,) * rows))
                tokens = [(token,) for token in best]
        return tuple(steps)


class _Context:
    """Owns the KV of some sequences, and a batch."""

    def __init__(self, model: ctypes.c_void_p | None, *, rows: int, length: int) -> None:
        if rows > _MOST_ROWS or length > _MOST_CONTEXT:
            raise ConfigError(
                f"llama.cpp is measured with at most {_MOST_ROWS} prompts of {_MOST_CONTEXT} "
                "tokens with answers; lower --batch or --prompt-tokens, or leave it out by --peers"
            )
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = rows * _MOST_CONTEXT, rows
        parameters.n_batch = parameters.n_ubatch = _BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = torch.get_num_threads()
        self._context = llama_cpp.llama_init_from_model(model, parameters)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def decode(self, tokens: Sequence[Sequence[int]], *, start: int) -> list[int]:
        """Run tokens of every sequence from a position on; places of the last ones in the batch."""
        ends: list[int] = []
        for part in _parts(tokens):
            batch, ends = self._batch, []
            for place, (sequence, offset, token) in enumerate(part):
                batch.token[place], batch.pos[place] = token, start + offset
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = offset == len(tokens[sequence]) - 1
                ends += [place] if batch.logits[place] else []
            batch.n_tokens = len(part)
            assert llama_cpp.llama_decode(self._context, batch) == 0, "llama.cpp failed"
        return ends

    def best_token(self, place: int, vocab_size: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, place)
        return int(np.ctypeslib.as_array(logits, (vocab_size,)).argmax())

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


_Placed = tuple[int, int, int]  # sequence, offset in its tokens, token


def _parts(tokens: Sequence[Sequence[int]]) -> Iterator[Sequence[_Placed]]:
    """All tokens, as many at a time as a batch holds; the last ones of all sequences together."""
    placed = [
        (sequence, offset, token)
        for sequence, row in enumerate(tokens)
        for offset, token in enumerate(row[:-1])
    ]
    last = [(sequence, len(row) - 1, row[-1]) for sequence, row in enumerate(tokens)]
    room = _BATCH_TOKENS - len(last)
    while len(placed) > room:
        yield placed[:room]
        placed = placed[room:]
    yield [*placed, *last]


def _converted(gguf: Path, dtype: Dtype, folder: Path) -> Path:
    """The same weights in another of llama.cpp's types."""
    path, parameters = folder / f"{dtype}.gguf", llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = _FILE_TYPES[dtype], True
    names: Iterable[bytes] = (str(each).encode() for each in (gguf, path))
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(parameters)):
        raise ConfigError(f"llama.cpp cannot convert {gguf} to {dtype}; use --dtype packed")
    return path
