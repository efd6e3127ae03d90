"""OpenVINO GenAI on a model that optimum-intel exports from the same folder when it is loaded."""

import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai
import torch
from optimum.intel import (  # type: ignore[import-not-found]
    OVModelForCausalLM,
    OVWeightQuantizationConfig,
)

from outrider.bench.offline.run_trace import Step, Trace
from outrider.config.engine_config import Dtype

# Activations and KV in float32, as in our engine; the default is bfloat16 where the CPU has it.
_PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class OpenVinoPeer:
    """Owns a compiled pipeline with the number of threads that torch has."""

    def __init__(self, folder: Path, dtype: Dtype) -> None:
        with tempfile.TemporaryDirectory() as exported:
            _export(folder, Path(exported), dtype)
            self._pipeline = openvino_genai.LLMPipeline(
                exported, "CPU", INFERENCE_NUM_THREADS=torch.get_num_threads(), **_PRECISION
            )

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        tokens = np.array(prompts, dtype=np.int64)  # [batch, prompt]
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens))
        )
        config = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False
        )
        start = time.perf_counter()
        result = self._pipeline.generate(inputs, config)
        total_s = time.perf_counter() - start
        steps = result.perf_metrics.raw_metrics
        assert list(steps.m_batch_sizes) == [len(prompts)] * max_tokens, "all rows, every step"
        return _trace(steps.m_new_token_times, total_s, num_rows=len(prompts))


def _trace(times_ms: Sequence[float], total_s: float, *, num_rows: int) -> Trace:
    """Our clock times the last token; OpenVINO's own times place the others before it."""
    tokens = (1,) * num_rows
    last_ms = times_ms[-1]
    return tuple(Step(total_s - (last_ms - time_ms) / 1e3, tokens) for time_ms in times_ms)


def _export(folder: Path, target: Path, dtype: Dtype) -> None:
    weights: dict[str, Any] = {
        "load_in_8bit": False
    }  # explicit: it would quantize large models by default
    if dtype == "int8":
        weights = {"quantization_config": OVWeightQuantizationConfig(bits=8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about branches
        model = OVModelForCausalLM.from_pretrained(folder, export=True, compile=False, **weights)
    model.save_pretrained(target)
