"""The floor by numbers computed by hand."""

import dataclasses
from pathlib import Path

import pytest

from outrider.bench.bandwidth import read_bandwidth
from outrider.bench.offline.decode_floor import DecodeFloor, kv_bytes, weight_bytes
from outrider.models.model_config import ModelConfig, read_config
from outrider.ops.attention.attention_rule import WHOLE_TEXT

# hidden 32, intermediate 48, 3 layers, 4 heads and 2 key-value heads of 8, vocabulary 67
ATTENTION_ROWS = 32 + 16 + 16 + 32  # q, k, v, o, with 32 columns each
MLP = 3 * 32 * 48
MATRICES = 3 * (ATTENTION_ROWS * 32 + MLP) + 67 * 32  # the layers and the head
NORMS = (3 * 2 + 1) * 32
OUTPUT_CHANNELS = 3 * (ATTENTION_ROWS + 48 + 48 + 32) + 67


@pytest.fixture
def config(tiny_folder: Path) -> ModelConfig:
    return read_config(tiny_folder)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", 4 * (MATRICES + NORMS)),
        ("bfloat16", 2 * (MATRICES + NORMS)),
        ("int8", MATRICES + 4 * OUTPUT_CHANNELS + 4 * NORMS),
    ],
)
def test_weight_bytes_count_layers_and_head_but_no_lookup_table(config, dtype, expected):
    assert weight_bytes(config, dtype) == expected


def test_a_tied_head_is_read_as_much_as_one_of_its_own(config):
    tied = dataclasses.replace(config, is_tied=True)
    assert weight_bytes(tied, "float32") == weight_bytes(config, "float32")


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("int8", 4), ("bfloat16", 2)])
def test_kv_bytes_are_keys_and_values_of_all_layers(config, dtype, item):
    per_token = 2 * 3 * 2 * 8 * item
    assert kv_bytes(config, dtype, batch=5, context=10.5) == 5 * 10.5 * per_token


def test_kv_behind_a_window_is_not_read(config):
    pattern = dataclasses.replace(config.pattern, windows=(4, WHOLE_TEXT, 4))
    windowed = dataclasses.replace(config, pattern=pattern)
    token = 2 * 2 * 8 * 4  # of one layer
    assert kv_bytes(windowed, "float32", batch=5, context=3.0) == 5 * 9 * token
    assert kv_bytes(windowed, "float32", batch=5, context=10.0) == 5 * (4 + 10 + 4) * token


def test_a_floor_reads_its_bytes_once_per_step():
    floor = DecodeFloor(dtype="int8", batch=8, weight_bytes=900, kv_bytes=100, bandwidth=2000.0)
    assert floor.step_s == 0.5
    assert floor.tokens_per_s == 16.0


def test_bandwidth_is_a_positive_number_of_bytes():
    assert read_bandwidth(buffer_bytes=1 << 16) > 0
