"""The definitions of the two speeds, on traces written by hand."""

import pytest

from outrider.bench.offline.run_trace import Step, decode_speed, first_token_s
from outrider.errors import ConfigError


def test_only_steps_with_every_row_decoding_count():
    trace = (
        Step(1.0, (1, 0)),
        Step(3.0, (1, 1)),  # the second prompt was read here
        Step(3.5, (1, 1)),
        Step(4.0, (1, 1)),
        Step(9.0, (0, 1)),  # the first row has ended
    )
    speed = decode_speed(trace)
    assert speed.tokens_per_s == 4.0  # 4 tokens in 1 second
    assert speed.step_s == 0.5
    assert first_token_s(trace) == 1.0


def test_a_step_that_emits_several_tokens_counts_them_all():
    trace = (Step(1.0, (1,)), Step(2.0, (3,)), Step(3.0, (2,)))
    assert decode_speed(trace).tokens_per_s == 2.5


def test_a_trace_without_a_full_step_names_the_flags_to_change():
    trace = (Step(1.0, (1, 0)), Step(2.0, (0, 1)), Step(3.0, (0, 1)))
    with pytest.raises(ConfigError, match=r"batch 2 .*--max-tokens"):
        decode_speed(trace)
