"""Linear layers over packed blocks against gguf's own dequantisation."""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.block_inputs import rounded
from support.gguf_files import random_raw
from support.tiny import save_tiny
from support.tiny_folder import write_tokenizer

from outrider.ops.compiled.block_kind import KINDS, KindName
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.compiled.pack_blocks import quantise_rows
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.block_linear import BlockLinear, eight_bit_linear, supports_blocks
from outrider.ops.linear.choose_linear import choose_linear

_SIZES = ((50, 96), (16, 32), (133, 576))
_INPUTS = {"Q4_K": 512, "Q5_K": 512, "Q6_K": 512}  # whole spans


def _rows(name: KindName, outputs: int, inputs: int) -> GgufRows:
    columns = _INPUTS.get(name, inputs)
    raw = random_raw(np.random.default_rng(outputs), outputs, name, columns=columns)
    return GgufRows(name, torch.from_numpy(raw))


def _widened(rows: GgufRows) -> torch.Tensor:  # [out, in] float32
    kind = gguf.GGMLQuantizationType[rows.name]
    return torch.from_numpy(gguf.quants.dequantize(rows.rows.numpy(), kind))


def _linear(*pieces: GgufRows) -> BlockLinear:
    return BlockLinear([rows.parts() for rows in pieces], pieces[0].shape[1])


def test_a_supported_machine_runs_these_tests() -> None:
    assert supports_blocks(), "the dev extra installs numba; these tests need an x86 CPU with AVX2"


def _assert_close(linear: BlockLinear, widened: torch.Tensor) -> None:
    x = torch.randn(11, linear.product.inputs) * torch.tensor([1e-3, 1.0, 50.0, 0.0] * 3)[:11, None]
    expected = rounded(x) @ widened.double().T
    # Codes half-way between two integers may be rounded to either in another precision.
    assert (linear(x) - expected).norm() / expected.norm() < 1e-3


@pytest.mark.fast_cases(24)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), _SIZES)
def test_products_are_those_of_the_dequantised_weight(
    name: KindName, outputs: int, inputs: int
) -> None:
    torch.manual_seed(outputs)
    rows = _rows(name, outputs, inputs)
    _assert_close(_linear(rows), _widened(rows))


def test_outputs_of_one_weight_have_different_kinds() -> None:
    torch.manual_seed(7)
    pieces = _rows("Q4_K", 32, 512), _rows("Q6_K", 48, 512), _rows("Q8_0", 21, 512)
    _assert_close(_linear(*pieces), torch.cat([_widened(rows) for rows in pieces]))


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("name", KINDS)
def test_bits_of_a_row_do_not_depend_on_other_rows_or_threads(name: KindName) -> None:
    torch.manual_seed(1)
    linear = _linear(_rows(name, 70, 160))
    x, before = torch.randn(19, linear.product.inputs), torch.get_num_threads()
    together = linear(x)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for num in range(1, 20):
                assert torch.equal(linear(x[:num]), together[:num])
                assert torch.equal(linear(x[-num:]), together[-num:])
    finally:
        torch.set_num_threads(before)


def test_the_residual_is_added_to_the_product() -> None:
    torch.manual_seed(2)
    linear, x = eight_bit_linear(torch.randn(40, 64)), torch.randn(5, 64)
    residual = torch.randn(5, 40)
    expected = linear(x) + residual
    assert torch.equal(linear.plus(x, residual), expected)


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    torch.manual_seed(3)
    linear, x = eight_bit_linear(torch.randn(40, 64)), torch.randn(4, 64)
    expected = linear(x)
    x[1, 7], x[2, 63] = float("nan"), float("-inf")
    out = linear(x)
    assert not out[1].isfinite().any()
    assert not out[2].isfinite().any()
    assert torch.equal(out[[0, 3]], expected[[0, 3]])


@pytest.mark.parametrize("inputs", [5, 32, 45])
def test_eight_bits_keep_weights_of_any_width(inputs: int) -> None:
    torch.manual_seed(inputs)
    weight, x = torch.randn(20, inputs), torch.randn(3, inputs)
    out = eight_bit_linear(weight)(x)
    assert (out - x @ weight.T).norm() / out.norm() < 0.02


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("name", KINDS)
def test_widened_rows_are_those_of_gguf(name: KindName) -> None:
    rows = _rows(name, 9, 96)
    assert torch.equal(rows.parts().widen(), _widened(rows))


def test_eight_bit_rows_are_those_of_gguf() -> None:
    torch.manual_seed(5)
    weight = torch.randn(9, 96)
    weight[3, 32:64] = 0.0
    expected = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(quantise_rows(weight), torch.from_numpy(expected))


@pytest.mark.slow  # starts a process
def test_a_numba_that_does_not_start_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs another NumPy')")
    code = "from outrider.ops.linear.block_linear import supports_blocks; print(supports_blocks())"
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    assert "Numba needs another NumPy" in ran.stderr


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("failure", ["RuntimeError('no locator')", "OSError('disk is full')"])
def test_kernels_that_do_not_load_leave_weights_in_float32(failure: str, tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text(f"raise {failure}")
    code = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import torch; from outrider.ops.linear.choose_linear import choose_linear\n"
        "from outrider.kv.choose_attention import choose_attention\n"
        "cpu = torch.device('cpu'); make = choose_linear('packed', cpu)\n"
        "print(type(make(torch.zeros(32, 32))).__name__)\n"
        'backend = choose_attention("auto", cpu, page_size=16, dtype=torch.float32, users=())\n'
        "print(type(backend).__name__)"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["PackedLinear", "ReferenceAttention"]
    assert f"all are float32: {failure.split('(')[0]}: " in ran.stderr


@pytest.mark.slow  # starts a process
def test_without_threads_for_them_no_compiled_function_runs(tmp_path: Path) -> None:
    """Some functions run on one thread, and are called by the module that needs the others."""
    save_tiny("llama", tmp_path)
    write_tokenizer(tmp_path)
    code = (
        "import sys; sys.modules['outrider.ops.compiled.openmp'] = None\n"
        "from outrider import LLM, SamplingParams\n"
        f"llm = LLM({str(tmp_path)!r}, draft='ngram', dtype='float32')\n"
        "[answer] = llm.generate('abcabcabc', SamplingParams(ignore_eos=True, max_tokens=9))\n"
        "print(len(answer.outputs[0].token_ids))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "9"
    assert "compiled CPU kernels are off" in ran.stderr


_BESIDE = """
import ctypes, shutil, sys, torch
from pathlib import Path
own = next(Path(torch.__file__).parent.glob("lib/libgomp*"))
copies = [Path(sys.argv[1]) / f"torch-{number}" / own.name for number in range(8)]
for copy in copies:
    copy.parent.mkdir()
    shutil.copy(own, copy)
others = [ctypes.CDLL(str(copy)) for copy in copies]
from outrider.ops.compiled.openmp import parallel
address = lambda library: ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
assert address(ctypes.CDLL(str(own))) not in [address(other) for other in others]
print(ctypes.cast(parallel, ctypes.c_void_p).value == address(ctypes.CDLL(str(own))))
"""


@pytest.mark.slow  # starts a process
def test_threads_are_torchs_beside_other_copies_of_openmp(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _BESIDE, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


def test_a_machine_without_avx2_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    why_not_compiled.cache_clear()
    try:
        with caplog.at_level("INFO"):
            choose_linear("packed", torch.device("cpu"))
    finally:
        why_not_compiled.cache_clear()
    assert "all are float32: they need an x86 CPU with AVX2" in caplog.text
    assert "pip install" not in caplog.text


_ELSEWHERE = """
import torch
from outrider.ops.linear.block_linear import eight_bit_linear
torch.manual_seed(6)
print(eight_bit_linear(torch.randn(40, 96))(torch.randn(9, 96)).view(torch.int32).tolist())
"""


@pytest.mark.slow  # compiles all kernels
def test_a_cpu_without_byte_products_computes_the_same_bits() -> None:
    old = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    command = [sys.executable, "-c", _ELSEWHERE]
    ran = subprocess.run(command, env=old, capture_output=True, text=True, check=True)
    torch.manual_seed(6)
    here = eight_bit_linear(torch.randn(40, 96))(torch.randn(9, 96))
    assert ran.stdout.strip() == str(here.view(torch.int32).tolist())
