import random
from dataclasses import replace

import pytest
from support.paper import PaperRunner, expected_output, facts, submission

from outrider.engine.draft_policy import WholeBudget
from outrider.engine.engine import Engine
from outrider.errors import CapacityError, RequestError
from outrider.wire.draft_budget import Budget, Rung


def engine_on_paper(**sizes):
    known = facts(**sizes)
    runner = PaperRunner(known, random.Random(1))
    return Engine(runner, known), runner


def run(engine, *, most_steps=2000):
    """All tokens by request id, and the order in which requests finished."""
    tokens, finished = {}, []
    for _ in range(most_steps):
        if not engine.has_work:
            return tokens, finished
        for update in engine.step():
            tokens.setdefault(update.request_id, []).extend(update.tokens)
            if update.finish != "running":
                finished.append((update.request_id, update.finish))
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_request_gets_the_tokens_of_its_own_history(depth, nodes):
    engine, _ = engine_on_paper(depth=depth, nodes=nodes)
    request = submission("a", [1, 2, 3, 4, 5], max_tokens=9)
    engine.add(request)
    tokens, finished = run(engine)
    assert tokens["a"] == expected_output(request, 64)
    assert finished == [("a", "length")]


def test_a_stop_id_ends_the_request_and_is_its_last_token():
    request = submission("a", [1, 2, 3], max_tokens=40)
    stop = expected_output(request, 64)[5]
    engine, _ = engine_on_paper(nodes=4)
    engine.add(submission("a", [1, 2, 3], max_tokens=40, stop=[stop]))
    tokens, finished = run(engine)
    assert tokens["a"][-1] == stop
    assert stop not in tokens["a"][:-1]
    assert finished == [("a", "stop")]


def test_output_ends_with_the_context():
    engine, _ = engine_on_paper(max_context=20, depth=1, nodes=3)
    engine.add(submission("a", list(range(15)), max_tokens=100))
    tokens, finished = run(engine)
    assert len(tokens["a"]) == 5
    assert finished == [("a", "length")]


def test_a_long_prompt_shares_steps_with_decoding_rows():
    engine, runner = engine_on_paper(step_tokens=8)
    engine.add(submission("short", [1], max_tokens=20))
    engine.step()
    engine.add(submission("long", [2] * 40, max_tokens=1))
    seen_before_long = 0
    for _ in range(6):  # 40 tokens in chunks of 7 beside one decoding row
        updates = engine.step()
        seen_before_long += sum(u.request_id == "short" for u in updates)
    assert seen_before_long == 6
    assert runner.widest_step == 8


@pytest.mark.parametrize(("power", "is_drafting"), [(0, True), (4, False)])
def test_rows_that_are_never_without_prompts_draft_only_if_it_pays(power, is_drafting):
    """Steps cost the same, or much more with every token; a round keeps one of two drafts."""
    sizes = {"nodes": 3, "max_rows": 4, "step_tokens": 24, "prefix_cache": False}
    engine, runner = engine_on_paper(**sizes, is_adaptive=True)
    runner.seconds = lambda width: float(width**power)
    budgets = []
    for number in range(400):
        engine.add(submission(str(number), [number % 50] * 12, max_tokens=6))
    while engine.has_work:
        before = runner.num_drafts
        engine.step()
        budgets.append(runner.num_drafts - before)
    last = budgets[-200:-20]  # at the end no prompts are left
    assert (sum(drafts > 0 for drafts in last) > len(last) / 2) == is_drafting


class RecordingPolicy(WholeBudget):
    """Remembers what it is told."""

    def __init__(self, rung=None):
        self.rung, self.emitted, self.query_tokens = rung, [], []

    def choose(self, step, *, num_rows, num_prompt):
        return self.rung or super().choose(step, num_rows=num_rows, num_prompt=num_prompt)

    def settle(self, step, load):
        self.query_tokens.append((load.num_rows, load.num_query))

    def note(self, step, *, seconds, emitted_per_row):
        self.emitted.append(emitted_per_row)


@pytest.mark.parametrize(("drafts", "query_tokens"), [(4, 5 + 5 + 2 + 1), (2, 3 * 4), (1, 2 * 4)])
def test_a_policy_is_told_what_rows_with_limits_of_their_own_run(drafts, query_tokens):
    """Trees of 5 nodes; rows that share drafts verify so many of them on average."""
    engine, _ = engine_on_paper(step_tokens=40, max_rows=4, nodes=5, num_pages=100)
    rung = Rung(tree=Budget(steps=4, nodes=5), drafts=drafts)
    policy = engine._scheduler._policy = RecordingPolicy(rung)
    for name, nodes in (("whole", 64), ("also", 64), ("two", 2), ("plain", 1)):
        asked = submission(name, [1, 2, 3], max_tokens=20)
        engine.add(replace(asked, budget=Budget(steps=nodes - 1, topk=1, nodes=nodes)))
    for _ in range(4):
        engine.step()
    assert {num for rows, num in policy.query_tokens if rows == 4} == {query_tokens}


def test_first_tokens_of_prompts_are_no_gain_of_drafting():
    engine, _ = engine_on_paper(step_tokens=12, max_rows=4, num_pages=100)
    policy = engine._scheduler._policy = RecordingPolicy()
    for number in range(12):  # their prompts end beside decode rows
        engine.add(submission(str(number), [number] * 3, max_tokens=5))
    run(engine)
    assert policy.emitted
    assert set(policy.emitted) == {0.0, 1.0}  # 0 without decode rows


def test_a_short_prompt_overtakes_long_ones_that_came_first():
    engine, _ = engine_on_paper(step_tokens=12, max_rows=5, num_pages=100)
    for name in ("long-1", "long-2", "long-3", "long-4"):  # more than share one step
        engine.add(submission(name, [7] * 50, max_tokens=1))
    engine.add(submission("short", [1, 2], max_tokens=1))
    _, finished = run(engine)
    assert finished[0][0] == "short"


def test_a_smaller_priority_number_goes_first_and_takes_the_room_of_a_larger():
    engine, _ = engine_on_paper(max_rows=1)
    engine.add(submission("low", [1, 2, 3], max_tokens=30, priority=5))
    (first,) = engine.step()
    engine.add(submission("high", [4, 5, 6], max_tokens=3, priority=1))
    tokens, finished = run(engine)
    assert [name for name, _ in finished] == ["high", "low"]
    assert [*first.tokens, *tokens["low"]] == expected_output(
        submission("low", [1, 2, 3], max_tokens=30), 64
    )


def test_preemption_loses_nothing_and_is_counted():
    engine, _ = engine_on_paper(num_pages=10, page_size=4, prefix_cache=False)
    requests = [submission(f"r{i}", [i, i + 1, i + 2], max_tokens=20) for i in range(3)]
    for request in requests:
        engine.add(request)
    tokens, preemptions = {}, 0
    while engine.has_work:
        for update in engine.step():
            tokens.setdefault(update.request_id, []).extend(update.tokens)
            preemptions = max(preemptions, update.progress.preemptions)
    assert preemptions > 0
    for request in requests:
        assert tokens[request.request_id] == expected_output(request, 64)


def test_a_second_request_with_the_same_prompt_reads_the_first_ones_pages():
    engine, _ = engine_on_paper()
    engine.add(submission("a", list(range(10)), max_tokens=2))
    run(engine)
    engine.add(submission("b", list(range(10)), max_tokens=2))
    updates = engine.step()
    assert updates[0].progress.cached == 8  # two whole pages of four


def test_an_aborted_request_has_no_more_updates_and_returns_its_pages():
    engine, _ = engine_on_paper(depth=1)
    engine.add(submission("a", [1, 2, 3], max_tokens=30))
    engine.add(submission("b", [3, 2, 1], max_tokens=5))
    engine.step()
    engine.step()
    engine.abort("a")
    tokens, _ = run(engine)
    assert "a" not in tokens
    cache = engine._scheduler.cache
    assert cache.num_available == cache.num_pages


@pytest.mark.parametrize(
    ("request_", "fix"),
    [
        (submission("x", []), "at least one token"),
        (submission("x", [1] * 64), "shorten the prompt"),
        (submission("x", [1, 50]), "between 0 and 49"),
        (submission("x", [-1]), "between 0 and 49"),
        (submission("a", [1]), "already in use"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason_and_the_others_go_on(request_, fix):
    engine, _ = engine_on_paper()
    engine.add(submission("a", [1, 2], max_tokens=3))
    with pytest.raises(RequestError, match=fix):
        engine.add(request_)
    tokens, _ = run(engine)
    assert len(tokens["a"]) == 3


def test_a_request_that_can_never_fit_the_cache_is_refused():
    engine, _ = engine_on_paper(num_pages=4, page_size=4)
    with pytest.raises(RequestError, match="kv_tokens"):
        engine.add(submission("x", [1] * 10, max_tokens=20))


def test_a_full_queue_refuses_more():
    engine, _ = engine_on_paper(max_queued=2)
    engine.add(submission("a", [1]))
    engine.add(submission("b", [1]))
    with pytest.raises(CapacityError, match="try again later"):
        engine.add(submission("c", [1]))


def test_drafts_past_the_end_of_an_answer_are_not_counted_as_kept():
    engine, runner = engine_on_paper(nodes=4)
    runner.rng = random.Random(5)
    engine.add(submission("a", [1, 2, 3], max_tokens=3))  # one from the prompt, two from a round
    while engine.has_work:
        for update in engine.step():
            assert update.progress.num_accepted <= 2


def test_a_request_holds_no_more_pages_than_its_next_round_needs():
    engine, _ = engine_on_paper(nodes=3, page_size=4, max_rows=1)
    engine.add(submission("r", [1, 2, 3], max_tokens=40))
    total = engine.stats.pages.total
    while engine.has_work:
        (update,) = engine.step() or (None,)
        if update and update.finish == "running":
            cached = len(engine._requests["r"].tokens) - 1
            most = -(-(cached + engine.facts.reach) // 4)
            assert total - engine.stats.pages.free <= most


@pytest.mark.parametrize(("num_pages", "num_running"), [(6, 3), (5, 2)])
def test_a_request_is_admitted_if_a_page_remains_for_each_running_one(num_pages, num_running):
    engine, _ = engine_on_paper(page_size=4, num_pages=num_pages, prefix_cache=False)
    for name, length in (("a", 2), ("b", 2), ("c", 6)):  # one page, one page, two pages
        engine.add(submission(name, [1] * length, max_tokens=3))
    engine.step()
    assert engine.stats.queue.running == num_running
