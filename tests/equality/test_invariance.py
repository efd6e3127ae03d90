"""Draws depend on seed and position alone: not on batch, chunks, preemption, overlap or restart."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import Shape, ask, engine_of, run_all
from support.tiny import VOCAB

from outrider.wire.sampling import Penalties, RowSampling

shapes = st.builds(
    Shape,
    page_size=st.sampled_from([1, 2, 8]),
    pad=st.sampled_from([1, 3]),
    depth=st.integers(0, 1),
    step_tokens=st.integers(6, 40),
    max_rows=st.integers(1, 5),
    kv_tokens=st.integers(44, 120),  # a request needs up to 40: scarce, so rows give way
    max_context=st.just(40),
    prefix_cache=st.booleans(),
)
prompts = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=5
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=shapes, prompts=prompts, seed=st.integers(0, 2**62), law=st.integers(0, 1))
def test_a_request_is_answered_alike_alone_and_in_any_company(models, shape, prompts, seed, law):
    model = models.target
    base = RowSampling(seed=seed, temperature=0.9)
    sampling = [base, replace(base, penalties=Penalties(repetition=1.3, frequency=0.4))][law]
    asked = [
        ask(f"r{i}", prompt, replace(sampling, seed=seed + i), max_tokens=12)
        for i, prompt in enumerate(prompts)
    ]
    together = run_all(engine_of(model, shape), asked)
    for submission in asked:
        alone = run_all(engine_of(model, Shape()), [submission])
        assert together[submission.request_id].tokens == alone[submission.request_id].tokens
