"""Zeroed memory is resident only where it is written, and so are an engine's caches."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.tiny import save_tiny

from outrider.config.process_heap import release_free_memory
from outrider.frontend.llm import LLM
from outrider.frontend.sampling_params import SamplingParams
from outrider.models.safetensors_reader import Checkpoint
from outrider.runtime.kv_capacity import held_bytes
from outrider.step.zeroed_memory import zeroed

CPU = torch.device("cpu")
MB = 1_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_zeroed_memory_holds_zeros_and_takes_writes(dtype: torch.dtype) -> None:
    tensor = zeroed(3, 700, 5, dtype=dtype, device=CPU)
    assert tensor.shape == (3, 700, 5)
    assert not tensor.any()
    tensor[1, 699] = 1
    assert tensor.sum() == 5


def test_a_large_tensor_is_resident_only_where_it_was_written() -> None:
    before = held_bytes(CPU)
    tensor = zeroed(1000, MB, dtype=torch.float32, device=CPU)  # 4 GB
    assert held_bytes(CPU) - before < 10 * MB
    tensor[500] = 1.0
    assert 4 * MB <= held_bytes(CPU) - before < 20 * MB


def test_an_engine_takes_memory_for_the_kv_it_uses_and_not_for_its_capacity(
    tmp_path: Path,
) -> None:
    save_tiny("llama", tmp_path)
    _answer(LLM(tmp_path, draft="none"))  # loads the libraries
    before = held_bytes(CPU)
    llm = LLM(tmp_path, draft="none", kv_tokens=2_000_000)  # 768 MB
    _answer(llm)
    assert held_bytes(CPU) - before < 100 * MB


def _answer(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [1, 2, 3]}
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=4), use_tqdm=False)
    assert output.usage.completion_tokens


def test_reading_a_checkpoint_leaves_none_of_its_file_resident(tmp_path: Path) -> None:
    tensors = {f"{index}.weight": torch.ones(3, MB) for index in range(8)}  # 12 MB each
    save_file(tensors, tmp_path / "model.safetensors")
    del tensors
    most, before = 0, held_bytes(CPU)
    with Checkpoint(tmp_path) as checkpoint:
        for name in checkpoint.names:
            assert checkpoint.read(name).sum() == 3 * MB
            most = max(most, held_bytes(CPU) - before)
        last = checkpoint.read("7.weight")
    assert most < 60 * MB
    assert held_bytes(CPU) - before < 20 * MB
    assert last.sum() == 3 * MB  # a view is read from the file again


def test_an_embedding_that_is_a_view_of_its_file_is_dropped_when_memory_is_released(
    tmp_path: Path,
) -> None:
    save_file({"embedding": torch.arange(16.0 * MB)}, tmp_path / "model.safetensors")  # 64 MB
    release_free_memory()
    before = held_bytes(CPU)
    with Checkpoint(tmp_path) as checkpoint:
        embedding = checkpoint.read("embedding")
    total = embedding.sum()
    assert held_bytes(CPU) - before > 50 * MB
    release_free_memory()
    assert held_bytes(CPU) - before < 20 * MB
    assert embedding.sum() == total
