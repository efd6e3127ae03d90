"""What a step costs by its query tokens, and which drafts are worth their tokens beside prompts."""

import pytest

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.beside_prompts import BesidePrompts, RungValue
from outrider.engine.adaptive.cost_curve import CostCurve


def curve_of(price, *, tokens):
    """A curve that has seen one step of each width."""
    curve = CostCurve()
    for each in tokens:
        curve.note(price(each), num_tokens=each)
    return curve


def test_a_curve_knows_nothing_before_the_first_step():
    curve = CostCurve()
    assert curve.seconds(5) == 0.0
    assert curve.added_s(100, beside=5) == 0.0


def test_costs_between_two_points_lie_on_a_line():
    curve = curve_of(lambda tokens: 1 + tokens / 10, tokens=(10, 30, 100))
    assert [curve.seconds(tokens) for tokens in (10, 20, 65)] == pytest.approx([2, 3, 7.5])
    assert curve.added_s(20, beside=10) == pytest.approx(2.0)
    assert curve.token_s(50) == pytest.approx(0.1)


def test_tokens_before_the_first_point_are_free_and_those_beyond_the_last_cost_its_mean():
    curve = curve_of(lambda tokens: 1 + tokens / 10, tokens=(10, 100))
    assert curve.seconds(1) == pytest.approx(2.0)
    assert curve.seconds(200) == pytest.approx(22.0)


def test_slow_steps_do_not_move_the_curve():
    curve = curve_of(lambda tokens: 1.0, tokens=(10,))
    for _ in range(5):
        curve.note(1.0, num_tokens=10)
    curve.note(50.0, num_tokens=10)
    assert curve.seconds(10) == 1.0


def test_a_slow_step_of_few_tokens_does_not_make_more_tokens_free():
    """No step takes less time for more tokens, so something else made it slow."""
    curve = curve_of({10: 2.0, 20: 1.5, 40: 3.0}.__getitem__, tokens=(10, 20, 40))
    assert [curve.seconds(tokens) for tokens in (10, 20, 30)] == [1.5, 1.5, 2.25]


def test_real_steps_replace_and_scale_those_of_dummy_runs():
    """A real step of 8 tokens takes a quarter longer, so one of 64 should too."""
    curve = CostCurve([(8, 4.0), (64, 6.0)])
    assert curve.seconds(64) == 6.0
    curve.note(5.0, num_tokens=8)
    assert (curve.seconds(8), curve.seconds(64)) == (5.0, 7.5)


def test_a_real_step_is_compared_with_dummy_runs_of_as_many_tokens():
    """One of 11 tokens, near to the dummy run of 8, takes what the line through them says."""
    curve = CostCurve([(8, 4.0), (64, 9.6)])
    curve.note(4.3, num_tokens=11)
    assert curve.seconds(64) == pytest.approx(9.6)


def test_a_step_with_drafts_bounds_what_its_tokens_take():
    curve = CostCurve()
    curve.note(1.0, num_tokens=32)
    assert curve.seconds(160) == pytest.approx(5.0)
    curve.note_drafted(1.2, num_tokens=160)
    assert curve.seconds(160) == pytest.approx(1.2)
    curve.note_drafted(9.0, num_tokens=100)  # less is known already
    assert curve.seconds(100) < 1.2


def values(*each):
    return [
        RungValue(rung=rung, nodes=nodes, emitted=emitted, seconds=seconds)
        for rung, (nodes, emitted, seconds) in enumerate(each)
    ]


def chosen_beside(curve, rungs, *, num_rows, num_prompt, usual_prompt):
    size = BatchSize(len(rungs), num_rows=num_rows, chosen=1, first_trial=0)
    size.prompt.note(usual_prompt)
    beside = BesidePrompts(curve)
    return beside.choose(rungs, size, num_rows=num_rows, num_prompt=num_prompt)


def test_drafts_are_used_beside_prompts_that_leave_them_cheap():
    """Tokens are free up to 200: 8 rows of 5 nodes beside 100 tokens, not beside 1,000."""
    curve = curve_of(lambda tokens: max(1.0, tokens / 200), tokens=(8, 40, 150, 200, 500, 2000))
    rungs = values((1, 1.0, 1.0), (5, 2.0, 1.1))
    for num_prompt, best in ((100, 1), (1000, 1), (4000, 1)):
        found = chosen_beside(curve, rungs, num_rows=8, num_prompt=num_prompt, usual_prompt=10)
        assert found == best
    rungs = values((1, 1.0, 1.0), (5, 1.1, 1.02))  # hardly any draft is accepted
    for num_prompt, best in ((100, 1), (1000, 0), (4000, 0)):
        found = chosen_beside(curve, rungs, num_rows=8, num_prompt=num_prompt, usual_prompt=10)
        assert found == best


def test_drafts_must_gain_more_where_every_step_reads_prompts():
    """32 rows of 3 nodes, of which 1.75 are emitted: 64 more tokens beside 448 take 14% longer."""
    curve = curve_of(lambda tokens: max(1.0, tokens / 200), tokens=(32, 96, 200, 480, 544, 2000))
    rungs = values((1, 1.0, 1.0), (3, 1.75, 1.1))
    rare = chosen_beside(curve, rungs, num_rows=32, num_prompt=448, usual_prompt=20)
    always = chosen_beside(curve, rungs, num_rows=32, num_prompt=448, usual_prompt=448)
    assert (rare, always) == (1, 0)
