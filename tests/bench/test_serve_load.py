"""`outrider bench serve`: arithmetic on timelines written by hand, the client on a real peer."""

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from support.sse_server import (
    DONE,
    Reply,
    cut,
    event,
    json_reply,
    sse_server,
    text_event,
    usage_event,
)

from outrider.bench.serve.arrivals import poisson_arrivals
from outrider.bench.serve.client_lag import ClientLoad, LagMeter
from outrider.bench.serve.http_client import Client, open_session
from outrider.bench.serve.load_driver import Driver
from outrider.bench.serve.load_journal import LoadJournal
from outrider.bench.serve.load_summary import Summary, course_of, percentile, spread_of
from outrider.bench.serve.request_outcome import AnswerTokens, Failure, ServerAnswer, Timeline
from outrider.bench.serve.serve_args import (
    ClosedLoop,
    Endpoint,
    LoadArgs,
    LoadQuestions,
    OpenLoop,
    Slo,
    choose_pattern,
    parse_base_url,
    parse_extra,
)
from outrider.bench.serve.serve_report import LoadReport, print_load
from outrider.bench.serve.server_acceptance import (
    ServerAcceptance,
    between,
    read_counters,
    read_metrics_field,
)
from outrider.bench.serve.sse_reader import Event, EventParser
from outrider.bench.serve.start_serve import choose_acceptance
from outrider.bench.serve.stream_chunk import StreamError, read_chunk
from outrider.cli.main import run
from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError

SLO = Slo(ttft_s=0.5, tpot_s=0.05)

# Everything the format allows and servers do: a byte order mark, comments as keep-alives, no space
# after the colon, both line ends, an event over several lines, names, ids, text beyond ASCII.
STREAM = (
    "\ufeff: hello\n\n"
    'data: {"a": 1}\n\n'
    ": keep-alive\r\n\r\n"
    'data:{"b":"\u00e4\u2028\U0001f40e"}\r\n\r\n'
    "event: error\nid: 7\nretry: 3\ndata: one\ndata:  two\ndata\n\n"
    "data: [DONE]\n\n"
).encode()
EVENTS = [
    Event("", '{"a": 1}'),
    Event("", '{"b":"\u00e4\u2028\U0001f40e"}'),
    Event("error", "one\n two\n"),
    Event("", "[DONE]"),
]


def parse(*pieces):
    parser = EventParser()
    return [each for piece in pieces for each in parser.feed(piece)] + parser.close()


def answer(*, sent_s, texts_s, output, prompt=0, index=0):
    return ServerAnswer(
        index=index,
        timeline=Timeline(sent_s=sent_s, texts_s=texts_s, ended_s=texts_s[-1]),
        tokens=AnswerTokens(prompt=prompt, output=output, is_counted_by_server=True),
        acceptances=(),
    )


def failure(kind, *, sent_s=0.0, ended_s=1.0):
    return Failure(index=0, kind=kind, message="why", sent_s=sent_s, ended_s=ended_s)


def summarise(*answers, failures=()):
    return Summary(answers=answers, failures=failures, num_unfinished=0, slo=SLO)


# --- server-sent events


def test_a_stream_cut_anywhere_gives_the_same_events():
    assert parse(STREAM) == EVENTS
    for place in range(len(STREAM)):
        assert parse(STREAM[:place], STREAM[place:]) == EVENTS, place
    assert parse(*(bytes([byte]) for byte in STREAM)) == EVENTS
    for seed in range(20):
        assert parse(*cut(STREAM, seed)) == EVENTS, seed


def test_lines_that_end_in_a_carriage_return_alone_are_lines():
    parser = EventParser()
    assert parser.feed(b"data: a\r\r") == [Event("", "a")]  # at once: its time is being taken
    assert parser.feed(b"data: b\r") == []
    assert parser.feed(b"\n") == []  # the other half of one line end, not an empty line
    assert parser.feed(b"\r\n") == [Event("", "b")]


def test_an_event_whose_last_line_ends_are_missing_is_not_lost():
    assert parse(b"data: a\n\ndata: [DONE]") == [Event("", "a"), Event("", "[DONE]")]
    assert parse(b"data: a\n") == [Event("", "a")]
    assert parse(b": only a comment") == []


# --- chunks


@pytest.mark.parametrize(
    ("choice", "has_text"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"content": "x"}}, True),
        ({"delta": {"content": None, "reasoning_content": "x"}}, True),
        ({"delta": {"tool_calls": [{"index": 0}]}}, True),
        ({"delta": {}, "finish_reason": "stop"}, False),
        ({"text": "x"}, True),
        ({"text": ""}, False),
    ],
)
def test_only_chunks_that_bring_text_count_as_tokens(choice, has_text):
    chunk = read_chunk(Event("", json.dumps({"choices": [choice], "usage": None})))
    assert chunk.has_text == has_text
    assert chunk.is_finish == ("finish_reason" in choice)
    assert chunk.usages == ()


@pytest.mark.parametrize(
    "told",
    [
        Event("", '{"error": {"message": "no room", "code": 503}}'),
        Event("", '{"error": "no room"}'),
        Event("", '{"object": "error", "message": "no room"}'),
        Event("error", '{"detail": "no room"}'),
        Event("error", "no room\nat all"),
    ],
)
def test_an_error_inside_a_stream_is_told_in_one_line(told):
    with pytest.raises(StreamError) as found:
        read_chunk(told)
    assert (found.value.kind, found.value.message) == ("error in the stream", "no room")


# --- what a run comes to


def test_the_times_of_an_answer_follow_from_its_timeline():
    one = answer(sent_s=1.0, texts_s=(1.5, 1.75, 2.5), output=5)
    assert one.timeline.ttft_s == 0.5
    assert one.timeline.itls_s == (0.25, 0.75)
    assert one.timeline.latency_s == 1.5
    assert one.tpots_s == (0.25,)  # 1 s for the four tokens after the first
    assert answer(sent_s=0.0, texts_s=(2.0,), output=1).tpots_s == ()


def test_percentiles_lie_between_their_neighbours():
    ordered = [10.0, 20.0, 30.0, 40.0]
    assert percentile(ordered, 50) == 25.0
    assert percentile(ordered, 90) == pytest.approx(37.0)
    assert percentile(ordered, 100) == 40.0
    assert percentile([7.0], 99) == 7.0
    found = spread_of([40.0, 10.0, 30.0, 20.0])
    assert (found.mean, found.p50, found.max) == (25.0, 25.0, 40.0)
    assert spread_of([]).p99 == 0.0


def test_rates_count_what_was_answered_from_the_first_request_to_the_last_end():
    found = summarise(
        answer(sent_s=10.0, texts_s=(11.0, 12.0), output=6, prompt=4),
        answer(sent_s=11.0, texts_s=(13.0, 15.0), output=4, prompt=6),
        failures=(failure("http 429", sent_s=19.0, ended_s=20.0),),
    )
    assert found.duration_s == 10.0
    assert found.per_s(len(found.answers)) == 0.2
    assert found.per_s(found.output_tokens) == 1.0
    assert found.per_s(found.output_tokens + found.prompt_tokens) == 2.0
    assert found.tokens_per_chunk == 2.5
    assert found.itl.max == 2.0
    assert found.tpot.p50 == pytest.approx((1 / 5 + 2 / 3) / 2)


def test_a_run_without_answers_has_no_numbers_and_no_error():
    empty = summarise()
    assert (empty.duration_s, empty.good_rate, empty.max_running) == (0.0, 0.0, 0)
    assert course_of(empty, num_bins=3).running == (0.0, 0.0, 0.0)


def test_goodput_wants_both_limits_kept_and_counts_failures_against():
    good = answer(sent_s=0.0, texts_s=(0.5, 0.6), output=3)  # 50 ms a token: just kept
    late = answer(sent_s=0.0, texts_s=(0.6, 0.61), output=3)
    slow = answer(sent_s=0.0, texts_s=(0.1, 2.0), output=3)
    single = answer(sent_s=0.0, texts_s=(0.1,), output=1)
    found = summarise(good, late, slow, single, failures=(failure("cut off", ended_s=4.0),))
    assert found.num_good == 2
    assert found.good_rate == 2 / 5
    assert found.per_s(found.num_good) == 0.5


def test_requests_that_run_are_counted_over_time():
    found = summarise(
        answer(sent_s=0.0, texts_s=(1.0, 2.0), output=2),
        answer(sent_s=1.0, texts_s=(3.0,), output=3),
        answer(sent_s=2.0, texts_s=(4.0,), output=1),  # begins as the first ends
    )
    assert found.max_running == 2
    assert found.mean_running == 6 / 4
    course = course_of(found, num_bins=4)
    assert course.bin_s == 1.0
    assert course.running == (1.0, 2.0, 2.0, 1.0)
    assert course.tokens_per_s == (0.0, 1.0, 1.0, 4.0)  # what comes at the very end is in the last


def test_failures_are_told_by_kind_with_the_most_frequent_first():
    kinds = summarise(failures=tuple(map(failure, ("cut off", "http 429", "http 429")))).kinds
    assert [(kind, len(failures)) for kind, failures in kinds.items()] == [
        ("http 429", 2),
        ("cut off", 1),
    ]


# --- arrivals


def test_arrivals_depend_on_their_seed_alone():
    def first(seed, rate=4.0):
        return list(itertools.islice(poisson_arrivals(rate=rate, seed=seed), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert first(1)[0] == 0.0
    assert first(1, rate=8.0) == pytest.approx([time_s / 2 for time_s in first(1)])


def test_gaps_between_arrivals_have_the_mean_and_the_spread_of_a_poisson_process():
    arrivals = list(itertools.islice(poisson_arrivals(rate=4.0, seed=3), 20_001))
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 4, rel=0.03)
    assert variance**0.5 == pytest.approx(1 / 4, rel=0.05)  # equal to the mean: exponential


# --- acceptance


def counters(drafts, draft_tokens, accepted, positions=()):
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Rounds.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}',
        f'vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {draft_tokens}',
        f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}',
        'vllm:spec_decode_num_drafts_created{model_name="m"} 1.7e+09',
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}'
            for place, count in enumerate(positions)
        ),
    ]
    return "\n".join(lines) + "\n"


def test_counters_tell_the_acceptance_between_two_scrapes():
    (before,) = read_counters(counters(10.0, 40.0, 20.0, (10.0,)))
    (after,) = read_counters(counters("1.1e+02", 440.0, 170.0, (90.0, 60.0, 20.0)))
    (moved,) = between(before, after)
    assert moved == ServerAcceptance(
        rounds=100, drafted=400, accepted=150, accepted_per_position=(80, 60, 20)
    )
    assert moved.accept_length == 2.5
    assert moved.accept_rate == 0.375
    assert moved.accepted_rates == (0.8, 0.6, 0.2)
    assert between(after, after) == ()
    assert read_counters("http_requests_total 3\n") == ()


def test_counters_of_several_engines_are_one_server():
    both = counters(10, 40, 20) + counters(1, 4, 2).replace("vllm:", "outrider:")
    (found,) = read_counters(both)
    assert (found.rounds, found.drafted, found.accepted) == (11, 44, 22)


def test_the_histogram_of_an_answer_gives_what_each_position_accepted():
    told = {
        "num_spec_steps": 10,
        "num_draft_tokens": 30,
        "num_accepted_draft_tokens": 11,
        "acceptance_histogram": [4, 2, 3, 1],  # steps that accepted 0, 1, 2, 3
    }
    (found,) = read_metrics_field(told)
    assert found.accepted_per_position == (6, 4, 1)
    assert sum(found.accepted_per_position) == found.accepted
    assert ServerAcceptance.sum_of([found, found]).accepted_per_position == (12, 8, 2)
    assert read_metrics_field({"num_spec_steps": None}) == ()


def test_what_answers_tell_comes_before_counters_that_others_move_too():
    one = ServerAcceptance(rounds=2, drafted=8, accepted=3, accepted_per_position=(2, 1))
    before, after = read_counters(counters(10, 40, 20)), read_counters(counters(30, 120, 70))
    silent = answer(sent_s=0.0, texts_s=(1.0,), output=1)
    telling = replace(silent, acceptances=(one,))
    told = choose_acceptance(summarise(telling, telling), before=before, after=after)
    assert (told.acceptances[0].rounds, told.source) == (4, "reported with the answers")
    told = choose_acceptance(summarise(telling, silent), before=before, after=after)
    assert (told.acceptances[0].rounds, "/metrics" in told.source) == (20, True)
    assert choose_acceptance(summarise(silent), before=(), after=after).acceptances == ()


# --- what is asked


def test_a_base_url_may_end_in_v1_and_must_be_one():
    assert parse_base_url("http://h:1/v1/") == "http://h:1"
    assert parse_base_url("https://h/prefix") == "https://h/prefix"
    for wrong in ("127.0.0.1:8000", "ftp://h", "http://h:x", ""):
        with pytest.raises(ConfigError, match="--base-url"):
            parse_base_url(wrong)


def test_a_pattern_is_open_or_closed_and_not_both():
    assert choose_pattern(rate=2.0, concurrency=None, seed=5) == OpenLoop(rate=2.0, seed=5)
    assert choose_pattern(rate=None, concurrency=None, seed=0) == ClosedLoop(concurrency=16)
    with pytest.raises(ConfigError, match="exclude"):
        choose_pattern(rate=2.0, concurrency=3, seed=0)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="--rate"):
            choose_pattern(rate=wrong, concurrency=None, seed=0)


def test_bodies_hold_standard_fields_and_a_seed_only_where_one_is_used():
    greedy = LoadQuestions(
        prompts=("a", "b"), origin="f", num=3, seed=7, fields={"temperature": 0.0}
    )
    body = greedy.body(2, model="m", endpoint="chat")
    assert body["messages"] == [{"role": "user", "content": "a"}]  # from the first again
    assert body["stream_options"] == {"include_usage": True}
    assert "seed" not in body
    warm = LoadQuestions(prompts=("a",), origin="f", num=3, seed=7, fields={"temperature": 1.0})
    body = warm.body(2, model="m", endpoint="completions")
    assert (body["prompt"], body["seed"]) == ("a", 9)


def test_extra_fields_must_be_an_object_without_the_runs_own():
    assert parse_extra('{"top_k": 3}') == {"top_k": 3}
    for wrong in ("{", "[]", '{"stream": false}'):
        with pytest.raises(ConfigError, match="--extra-body"):
            parse_extra(wrong)


# --- sending


def tick():
    return itertools.count().__next__


def drive(pattern, num, ask, journal):
    async def main():
        await Driver(ask, journal, asyncio.get_running_loop().time).run(pattern, num)

    asyncio.run(main())


def test_a_closed_loop_never_runs_more_than_its_clients():
    journal, most, order = LoadJournal(), [], random.Random(1)

    async def ask(index):
        most.append(journal.num_running)
        for _ in range(order.randrange(5)):
            await asyncio.sleep(0)
        return answer(sent_s=0.0, texts_s=(1.0,), output=1, index=index)

    drive(ClosedLoop(concurrency=3), 20, ask, journal)
    assert max(most) == 3
    assert sorted(each.index for each in journal.answers) == list(range(20))
    assert (journal.num_running, journal.num_unfinished) == (0, 0)


def test_an_open_loop_does_not_wait_for_answers():
    journal = LoadJournal()

    async def ask(index):
        while len(journal.lates_s) < 50:  # nobody is answered before all have been sent
            await asyncio.sleep(0)
        return answer(sent_s=0.0, texts_s=(1.0,), output=1, index=index)

    drive(OpenLoop(rate=1e6, seed=0), 50, ask, journal)
    assert len(journal.answers) == 50


def test_a_stopped_run_keeps_what_was_measured():
    journal = LoadJournal()

    async def main():
        async def ask(index):
            if index == 2:
                driver.stop()
                await asyncio.Event().wait()
            return answer(sent_s=0.0, texts_s=(1.0,), output=1, index=index)

        driver = Driver(ask, journal, asyncio.get_running_loop().time)
        await driver.run(ClosedLoop(concurrency=1), 10)

    asyncio.run(main())
    assert [each.index for each in journal.answers] == [0, 1]
    assert (journal.num_unfinished, journal.num_running) == (1, 0)


def test_a_run_that_cannot_succeed_ends_at_its_first_refusal():
    journal = LoadJournal()

    async def refuse(index):
        return failure("http 401")

    drive(ClosedLoop(concurrency=1), 100, refuse, journal)
    assert len(journal.failures) == 1

    async def busy(index):
        return failure("http 429")

    journal = LoadJournal()
    drive(ClosedLoop(concurrency=1), 100, busy, journal)
    assert len(journal.failures) == 100


# --- the client as a bottleneck


def test_a_late_event_loop_or_a_full_core_makes_the_client_the_bottleneck():
    calm = ClientLoad(lag=spread_of([0.001]), cpu_share=0.3, late=spread_of([]))
    assert not calm.is_bottleneck
    assert ClientLoad(lag=spread_of([0.02]), cpu_share=0.3, late=spread_of([])).is_bottleneck
    assert ClientLoad(lag=spread_of([0.0]), cpu_share=0.95, late=spread_of([])).is_bottleneck


def test_the_lag_is_what_the_clock_shows_beyond_the_sleep():
    times = iter([0.0, *(time_s for n in range(100) for time_s in (n * 1.0, n * 1.0 + 0.27))])

    async def main():
        meter = LagMeter(lambda: next(times))
        task = asyncio.create_task(meter.run())
        await asyncio.sleep(0.1)
        task.cancel()
        return meter.read([0.0, 0.5])

    load = asyncio.run(main())
    assert load.lag.max == pytest.approx(0.25)
    assert load.late.max == 0.5


@pytest.mark.parametrize(
    ("lag_s", "cpu_share", "words"),
    [
        (0.03, 0.1, "had to wait for the processor (10% of a core, event loop late by 30.0 ms)"),
        (0.0, 0.9, "was the bottleneck (90% of a core"),
        (0.001, 0.1, ""),
    ],
)
def test_a_client_that_did_not_keep_up_is_warned_about(capsys, lag_s, cpu_share, words):
    load = ClientLoad(lag=spread_of([lag_s]), cpu_share=cpu_share, late=spread_of([]))
    questions = LoadQuestions(prompts=("a",), origin="f", num=1, seed=0, fields={})
    args = LoadArgs(
        endpoint=Endpoint(base_url="http://h", name="chat", api_key="", timeout_s=1.0),
        models=(),
        questions=questions,
        pattern=ClosedLoop(concurrency=1),
        slo=SLO,
        num_warm_up=0,
    )
    summary = summarise(answer(sent_s=0.0, texts_s=(1.0,), output=1))
    found = choose_acceptance(summary, before=(), after=())
    print_load(LoadReport(args=args, model="m", summary=summary, reported=found, client=load))
    out = capsys.readouterr().out
    assert words in out
    assert ("warning" in out) == bool(words)


# --- one request against a real peer


def ask_once(reply, *, timeout_s=30.0, path=""):
    """What the client makes of one reply, by a clock that counts its readings."""

    async def main(url):
        endpoint = Endpoint(base_url=url + path, name="chat", api_key="k", timeout_s=timeout_s)
        async with open_session(endpoint) as session:
            client = Client(session, endpoint, tick())
            return await client.send(3, {"model": "m"}, note_chunk=lambda: chunks.append(1))

    chunks = []
    with sse_server(lambda number, body: reply) as server:
        return asyncio.run(main(server.url)), server, len(chunks)


ANSWER = [text_event(""), *map(text_event, ("a", "\u00e4b", "c")), text_event("", "stop")]


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_cut_anywhere_is_read_whole(seed):
    metrics = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3}
    usage = usage_event(prompt=11, output=7, metrics={"speculative_decoding": metrics})
    stream = b": hi\n\n" + b"".join(ANSWER) + usage + DONE
    found, server, num_chunks = ask_once(Reply(pieces=cut(stream, seed)))
    assert isinstance(found, ServerAnswer)
    assert found.index == 3
    assert found.tokens == AnswerTokens(prompt=11, output=7, is_counted_by_server=True)
    assert len(found.timeline.texts_s) == num_chunks == 3
    times = (found.timeline.sent_s, *found.timeline.texts_s, found.timeline.ended_s)
    assert list(times) == sorted(times)
    assert [(each.rounds, each.accepted) for each in found.acceptances] == [(2, 3)]
    assert server.seen[0].headers["authorization"] == "Bearer k"


def test_without_usage_chunks_are_counted_and_said_so():
    found, _, _ = ask_once(Reply(pieces=[*ANSWER, DONE]))
    assert isinstance(found, ServerAnswer)
    assert found.tokens == AnswerTokens(prompt=0, output=3, is_counted_by_server=False)


def test_a_stream_may_end_without_done_once_its_answer_has_ended():
    found, _, _ = ask_once(Reply(pieces=[b"".join(ANSWER).rstrip()]))
    assert isinstance(found, ServerAnswer)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (json_reply({"error": {"message": "full"}}, status=429), "http 429", "full"),
        (Reply(status=500, pieces=[b"<b>oh\n"], content_type="text/html"), "http 500", "<b>oh"),
        (Reply(status=502), "http 502", "(no message)"),
        (Reply(pieces=ANSWER[:2]), "cut off", "the stream ended before its answer"),
        (Reply(pieces=ANSWER[:2], then="drop"), "connection lost", ""),
        (Reply(pieces=[*ANSWER[:2], event({"error": "died"})]), "error in the stream", "died"),
        (Reply(pieces=[text_event("", "stop"), DONE]), "empty answer", "the answer has no text"),
        (json_reply({"choices": []}), "not a stream", "application/json: "),
        (Reply(pieces=[b"data: {oops\n\n"]), "unreadable event", "{oops"),
        (Reply(pieces=[b"data: [1]\n\n"]), "unreadable event", "[1]"),
    ],
)
def test_every_way_to_fail_has_its_kind(reply, kind, message):
    found, _, _ = ask_once(reply)
    assert isinstance(found, Failure)
    assert found.kind == kind
    assert found.message.startswith(message)
    assert found.ended_s >= found.sent_s


def test_a_server_that_falls_silent_is_given_up():
    found, _, _ = ask_once(Reply(pieces=ANSWER[:2], then="hang"), timeout_s=0.2)
    assert isinstance(found, Failure)
    assert (found.kind, "--timeout" in found.message) == ("timeout", True)


# --- the command


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(5)))
    return path


def bench(server_url, prompts, *more):
    return run(["bench", "serve", "--base-url", server_url, "--prompts", str(prompts), *more])


def whole(number):
    """A complete answer of 4 tokens in 3 chunks."""
    return Reply(pieces=cut(b"".join([*ANSWER, usage_event(prompt=5, output=4), DONE]), number))


def test_a_run_is_reported_as_a_table_and_as_json(prompts, tmp_path, capsys):
    target = tmp_path / "out.json"

    def script(number, body):
        if number == 3:
            return json_reply({"error": {"message": "the queue is full"}}, status=429)
        if number == 5:
            return Reply(pieces=ANSWER[:3], then="drop")
        return whole(number)

    with sse_server(script) as server:
        server.metrics = [counters(10, 40, 20), counters(30, 120, 70)]
        flags = ["--num", "8", "--concurrency", "3", "--max-tokens", "9", "--json", str(target)]
        assert bench(server.url + "/v1", prompts, *flags, "--api-key", "secret") == 0
        bodies = [seen.body for seen in server.seen if seen.method == "POST"]
    out = capsys.readouterr().out
    for words in (
        "6 answered, 2 failed",
        "1 x http 429: the queue is full",
        "1 x connection lost",
        "24 out",
        "1.33 a chunk",
        "acceptance  3.50 tokens/round",
        "TTFT",
        "repeated: a prefix cache will know them",
    ):
        assert words in out
    found = json.loads(target.read_text())
    assert found["server"]["model"] == "tiny"  # the only one that the server lists
    assert found["summary"]["failed"] == {"http 429": 1, "connection lost": 1}
    assert found["summary"]["output_tokens"] == 24
    assert found["acceptance"][0]["rounds"] == 20  # what came after the warm-up
    assert [len(each["itl_s"]) for each in found["requests"]] == [2] * 6
    assert "secret" not in target.read_text() + out
    assert len(bodies) == 9  # one to warm up, with the prompt after the last
    assert bodies[0]["messages"][0]["content"] == "p3"
    assert all(body["max_tokens"] == 9 for body in bodies)


def test_clients_ask_at_the_same_time(prompts, capsys):
    # No answer begins before four requests are there: with three clients nothing would end.
    replies = [Reply(pieces=[*ANSWER, DONE], after_requests=4) for _ in range(4)]
    with sse_server(lambda number, body: replies[number]) as server:
        assert bench(server.url, prompts, "--num", "4", "--concurrency", "4", "--warm-up", "0") == 0
    out = capsys.readouterr().out
    assert "4 at most" in out
    assert "4 answers came without usage: their chunks were counted" in out
    assert "each once" in out


def test_an_open_loop_on_the_completions_route_sends_what_was_asked(prompts, capsys):
    chunks = [event({"choices": [{"text": "x", "finish_reason": end}]}) for end in (None, "stop")]
    with sse_server(lambda number, body: Reply(pieces=[*chunks, DONE])) as server:
        load = ["--num", "6", "--rate", "500", "--seed", "4", "--endpoint", "completions"]
        body = ["--temperature", "0.5", "--ignore-eos", "--extra-body", '{"top_k": 2}']
        assert bench(server.url, prompts, *load, *body, "--model", "m", "--warm-up", "0") == 0
        posts = [seen for seen in server.seen if seen.method == "POST"]
    assert {seen.path for seen in posts} == {"/v1/completions"}
    assert sorted(seen.body["seed"] for seen in posts) == [4, 5, 6, 7, 8, 9]
    assert all(seen.body["ignore_eos"] and seen.body["top_k"] == 2 for seen in posts)
    assert "Poisson arrivals at 500/s (seed 4)" in capsys.readouterr().out


def test_nobody_at_the_address_names_the_fix(prompts, capsys):
    with sse_server(lambda number, body: whole(number)) as server:
        url = server.url
    assert bench(url, prompts) == 1
    err = capsys.readouterr().err
    assert "outrider serve" in err
    assert "--base-url" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("warm_up", ["0", "1"])
@pytest.mark.parametrize(("status", "flag"), [(401, "--api-key"), (404, "--model")])
def test_a_refusal_names_the_flag_that_helps(prompts, capsys, status, flag, warm_up):
    refusal = json_reply({"error": {"message": "no"}}, status=status)
    with sse_server(lambda number, body: refusal) as server:
        assert bench(server.url, prompts, "--model", "m", "--warm-up", warm_up) == 1
    err = capsys.readouterr().err
    assert flag in err
    assert err.count("\n") == 1


def test_a_server_with_several_models_wants_one_named(prompts, capsys):
    with sse_server(lambda number, body: whole(number)) as server:
        server.models = json_reply({"data": [{"id": "a"}, {"id": "b"}]})
        assert bench(server.url, prompts) == 1
        server.models = json_reply({"error": "no"}, status=401)
        assert bench(server.url, prompts) == 1
    err = capsys.readouterr().err
    assert "it has a, b; give --model" in err
    assert "wants a key" in err


def test_a_run_in_which_everything_fails_says_why_and_fails(prompts, capsys):
    full = json_reply({"error": {"message": "full"}}, status=429, headers=("Retry-After: 1",))
    with sse_server(lambda number, body: full) as server:
        assert bench(server.url, prompts, "--num", "3", "--warm-up", "0") == 1
    captured = capsys.readouterr()
    assert "3 x http 429: full" in captured.out
    assert "http 429: full" in captured.err


def test_ctrl_c_prints_what_was_measured(prompts):
    def script(number, body):
        return whole(number) if number < 3 else Reply(pieces=ANSWER[:2], then="hang")

    code = "import sys; from outrider.cli.main import run; sys.exit(run(sys.argv[1:]))"
    with sse_server(script) as server:
        command = [sys.executable, "-c", code, "bench", "serve", "--base-url", server.url]
        flags = ["--prompts", str(prompts), "--concurrency", "2"]
        process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2):  # both clients are in the middle of an answer
            assert server.hanging.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "2 answered, 0 failed, 2 cut short" in out
    assert "TTFT" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_picture_is_drawn(prompts, tmp_path):
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    picture = tmp_path / "run.png"
    with sse_server(lambda number, body: whole(number)) as server:
        assert bench(server.url, prompts, "--num", "6", "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_missing_for_a_picture_or_a_run_is_named_before_it(prompts, capsys, monkeypatch):
    flags = ["--plot", "run.png"]
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "matplotlib" else 1
    )
    assert bench("http://127.0.0.1:9", prompts, *flags) == 1
    assert f"matplotlib; {install_hint('bench')}" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bench("http://127.0.0.1:9", prompts, *flags) == 1
    assert f"aiohttp; {install_hint('bench')}" in capsys.readouterr().err
