"""What drafts should cost by dummy runs, and what adaptive drafting makes of it."""

import random
from dataclasses import replace

import pytest
from support.hiccups import Adversary, Machine, dummy_costs, simulate

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.adaptive.rung_prices import RungPrices
from outrider.wire.draft_budget import PLAIN, Budget, ladder_of
from outrider.wire.runner_facts import RungCost

CHAIN = Budget(steps=3, topk=1, nodes=4)
LADDER = ladder_of(CHAIN, is_shared=False)


def cost(rows, drafts, seconds):
    return RungCost(rows=rows, drafts=drafts, seconds=seconds)


def undisturbed(machine, *, num_steps, costs):
    nothing, adaptation = Adversary(lambda *_: False, []), Adaptation(CHAIN, costs=costs)
    rng = random.Random(3)
    return simulate(adaptation, machine, nothing, rng, num_steps=num_steps, num_in_flight=0)


def packed_price(width):
    """Milliseconds of a step with 4-bit weights: every query token costs about as much."""
    return 0.3 + 0.95 * width


def test_a_price_between_measured_drafts_lies_on_the_line_between_them():
    prices = RungPrices([cost(4, 0, 2.0), cost(4, 1, 3.0), cost(4, 3, 7.0)])
    assert [prices.times_plain(4, drafts) for drafts in (0, 1, 2, 3, 5)] == [1, 1.5, 2.5, 3.5, 5.5]


def test_a_price_is_that_of_the_nearest_measured_number_of_rows():
    prices = RungPrices([cost(1, 0, 1.0), cost(1, 1, 1.1), cost(8, 0, 2.0), cost(8, 1, 4.0)])
    assert [prices.times_plain(rows, 1) for rows in (1, 2, 9, 200)] == [1.1, 1.1, 2.0, 2.0]


def test_rows_without_a_measured_draft_tell_nothing():
    assert not RungPrices([cost(1, 0, 1.0)]).are_measured(1)


def test_dummy_runs_of_few_rows_tell_nothing_about_many():
    """A slow machine had time for one row, beside which drafts are free."""
    prices = RungPrices([cost(2, 0, 1.0), cost(2, 1, 1.02)])
    assert [prices.are_measured(rows) for rows in (1, 2, 3, 4, 64)] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("rows", [8, 16])
def test_many_rows_do_not_begin_with_drafts_that_are_free_beside_one(rows):
    """Steps take as long as with 8 query tokens, and then longer in proportion."""
    machine = Machine(rows=1, seconds=lambda width: max(width, 8) / 8, accept_rate=0.3)
    costs = [each for each in dummy_costs(machine, LADDER) if each.rows == 1]
    adaptation, nothing, rng = (
        Adaptation(CHAIN, costs=costs),
        Adversary(lambda *_: False, []),
        random.Random(3),
    )
    simulate(adaptation, machine, nothing, rng, num_steps=200, num_in_flight=0)
    many = replace(machine, rows=rows)
    run = simulate(adaptation, many, nothing, rng, num_steps=64, num_in_flight=0)
    assert sum(run.tokens) / sum(run.seconds) > 0.9 * many.rate(PLAIN)


def test_drafts_that_cannot_pay_by_dummy_runs_are_not_tried_for_a_thousand_steps():
    """The price of a prompt token said that they are free: 8 rows began with a trial."""
    machine = Machine(rows=8, seconds=packed_price, accept_rate=0.9)
    run = undisturbed(machine, num_steps=1000, costs=dummy_costs(machine, LADDER))
    assert set(run.budgets) == {PLAIN}


def test_drafts_that_pay_only_if_nearly_all_are_accepted_cannot_pay():
    """Chains of 3 that cost 3.8 plain steps: the dummy runs of 8 packed rows on two cores."""
    costs = [cost(8, 0, 1.0), cost(8, 1, 2.2), cost(8, 3, 3.8)]
    assert not RungPrices(costs).can_pay(LADDER, 8, least_gain=1.03)
    assert RungPrices([*costs, cost(8, 3, 3.5)]).can_pay(LADDER, 8, least_gain=1.03)


def test_no_rung_is_tried_for_a_thousand_steps_where_none_can_pay():
    """Prices that only the whole chain would pay, if all its drafts were accepted."""
    price = {8: 1.0, 16: 2.2, 24: 3.0, 32: 3.8}
    machine = Machine(rows=8, seconds=price.__getitem__, accept_rate=0.1)
    run = undisturbed(
        machine, num_steps=1000, costs=[cost(8, 0, 1.0), cost(8, 1, 2.2), cost(8, 3, 3.8)]
    )
    assert set(run.budgets) == {PLAIN}


def test_plain_decoding_is_measured_soon_where_dummy_runs_called_drafts_too_cheap():
    machine = Machine(rows=1, seconds=lambda width: 0.5 + 0.5 * width, accept_rate=0.4)
    cheap = [cost(1, 0, 1.0), cost(1, 1, 1.02), cost(1, 3, 1.06)]
    run = undisturbed(machine, num_steps=128, costs=cheap)
    assert run.budgets.index(PLAIN) <= 40


def test_a_stall_in_a_dummy_run_does_not_lock_drafts_out():
    machine = Machine(rows=1, seconds=lambda width: 1 + width / 100, accept_rate=0.9)
    run = undisturbed(machine, num_steps=1500, costs=[cost(1, 0, 1.0), cost(1, 1, 80.0)])
    assert run.budgets[-1] == CHAIN


def test_drafts_are_tried_late_even_if_dummy_runs_said_that_they_cannot_pay():
    machine = Machine(rows=8, seconds=lambda width: 1 + width / 1000, accept_rate=0.9)
    wrong = Machine(rows=8, seconds=packed_price, accept_rate=0.9)
    run = undisturbed(machine, num_steps=1200, costs=dummy_costs(wrong, LADDER))
    assert run.budgets[-1] == CHAIN


@pytest.mark.parametrize("rows", [1, 2])
def test_a_small_batch_begins_with_the_drafts_that_are_free_by_dummy_runs(rows):
    machine = Machine(rows=rows, seconds=lambda width: 5 + 0.02 * width, accept_rate=0.8)
    run = undisturbed(machine, num_steps=4, costs=dummy_costs(machine, LADDER))
    assert run.budgets == [CHAIN] * 4


def test_a_small_batch_begins_with_fewer_drafts_where_all_of_them_are_dear():
    machine = Machine(
        rows=1, seconds=lambda width: {1: 1.0, 2: 1.3}.get(width, 1.0 * width), accept_rate=0.8
    )
    run = undisturbed(machine, num_steps=4, costs=dummy_costs(machine, LADDER))
    assert run.budgets == [LADDER[1].tree] * 4


def test_a_small_batch_begins_plainly_where_all_drafts_are_dear():
    machine = Machine(rows=1, seconds=lambda width: float(width), accept_rate=0.8)
    run = undisturbed(machine, num_steps=4, costs=dummy_costs(machine, LADDER))
    assert run.budgets == [PLAIN] * 4


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("are_known", [True, False])
def test_drafts_are_chosen_where_plain_steps_are_slower_than_steps_with_drafts(rows, are_known):
    """One query token has a slow kernel: plain samples do not count at first, and trials of plain
    decoding went on for ever.
    """

    def seconds(width):
        return 1.5 if width == rows else 1 + 0.02 * width / rows

    machine = Machine(rows=rows, seconds=seconds, accept_rate=0.6)
    costs = [cost(rows, rung.drafts, machine.cost(rung.tree)) for rung in LADDER]
    run = undisturbed(machine, num_steps=3000, costs=costs if are_known else [])
    late = slice(1000, None)
    assert sum(run.tokens[late]) / sum(run.seconds[late]) > 0.95 * machine.rate(CHAIN)
