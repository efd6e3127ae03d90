"""Requests through the real engine, with a model on paper."""

import pytest
from support.paper import expected_output, submission

from outrider.errors import CapacityError, RequestError
from outrider.frontend.llm import Stream
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.tokenizer import NoTokenizer

LONG = SamplingParams(max_tokens=30, ignore_eos=True)


def finish(frontend, prompt, params):
    live = frontend.submit(frontend.inputs.prepare(prompt, params))
    while not live.is_finished:
        frontend.step()
    return live.output()


def expected(prompt, max_tokens):
    return expected_output(submission("x", list(prompt), max_tokens=max_tokens), 128)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_request_returns_its_tokens_their_text_and_its_counts(make_frontend, depth, nodes):
    frontend = make_frontend(depth=depth, nodes=nodes)
    output = finish(frontend, TextPrompt("the rider"), LONG)
    tokens = expected(output.prompt_token_ids, 30)
    (completion,) = output.outputs
    assert completion.token_ids == tokens
    assert completion.text == frontend.tokenizer.decode(tokens, skip_special=True)
    assert (completion.finish_reason, output.finished) == ("length", True)
    assert (output.prompt, output.usage.completion_tokens) == ("the rider", 30)
    assert completion.acceptance.rounds + completion.acceptance.kept >= 29
    assert 0 < output.timing.first_token_s <= output.timing.total_s


def test_a_stop_string_frees_the_engine_at_once(frontend):
    whole = finish(frontend, TextPrompt("the rider"), LONG).outputs[0]
    stop = whole.text[8:10]
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop=stop)
    (completion,) = finish(frontend, TextPrompt("the rider"), params).outputs
    assert completion.text == whole.text[: whole.text.index(stop)]
    assert completion.token_ids == whole.token_ids[: len(completion.token_ids)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert frontend.is_idle


def test_children_differ_in_their_seed_only(frontend):
    params = SamplingParams(n=3, seed=7, max_tokens=4, ignore_eos=True)
    output = finish(frontend, TextPrompt("abc"), params)
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert output.outputs[0].seed == 7
    assert len({each.seed for each in output.outputs}) == 3
    assert output.usage.completion_tokens == 12


def test_a_model_without_tokenizer_serves_token_ids(make_frontend):
    frontend = make_frontend(NoTokenizer(eos_ids=frozenset({0})))
    output = finish(frontend, TokenPrompt((5, 6, 7)), LONG)
    assert (output.prompt, output.outputs[0].text) == (None, "")
    assert output.outputs[0].token_ids == expected((5, 6, 7), 30)
    with pytest.raises(RequestError, match="prompt_token_ids"):
        frontend.inputs.prepare(TextPrompt("abc"), LONG)
    with pytest.raises(RequestError, match="stop_token_ids"):
        frontend.inputs.prepare(TokenPrompt((5,)), SamplingParams(stop="a"))


def test_a_request_whose_last_child_is_refused_leaves_nothing_behind(make_frontend):
    frontend = make_frontend(max_queued=2)
    with pytest.raises(CapacityError):
        frontend.submit(frontend.inputs.prepare(TextPrompt("abc"), SamplingParams(n=3)))
    assert frontend.is_idle


def test_a_feed_waits_for_room_and_answers_every_request(make_frontend):
    frontend = make_frontend(max_queued=2, max_rows=2)
    prompts = [TokenPrompt((token, 9)) for token in range(1, 12)]
    requests = [(prompt, frontend.inputs.prepare(prompt, LONG)) for prompt in prompts]
    answers = {
        key: live.output().outputs[0].token_ids
        for key, live in Feed(frontend, requests, max_in_flight=8)
        if isinstance(live, RequestState)
    }
    assert answers == {prompt: expected(prompt.token_ids, 30) for prompt in prompts}


def test_a_feed_names_the_request_the_engine_refuses_and_goes_on(make_frontend):
    frontend, roomy = make_frontend(num_pages=8), make_frontend()  # 32 tokens of KV, and 1024
    sizes = {"small": 8, "large": 60, "last": 8}
    requests = [
        (name, roomy.inputs.prepare(TokenPrompt((5,)), SamplingParams(max_tokens=size)))
        for name, size in sizes.items()
    ]
    answers = dict(Feed(frontend, requests, max_in_flight=8))
    assert isinstance(answers["large"], RequestError)
    assert isinstance(answers["small"], RequestState)
    assert isinstance(answers["last"], RequestState)


def test_a_feed_draws_no_more_than_its_window(frontend):
    drawn = []

    def source():
        for number in range(9):
            drawn.append(number)
            yield number, frontend.inputs.prepare(TokenPrompt((5, number)), LONG)

    answers = iter(Feed(frontend, source(), max_in_flight=3))
    next(answers)
    assert len(drawn) <= 4


def test_leaving_a_feed_early_aborts_what_still_runs(frontend):
    sizes = enumerate([2, 30, 30])
    requests = [
        (number, frontend.inputs.prepare(TokenPrompt((5,)), SamplingParams(max_tokens=size)))
        for number, size in sizes
    ]
    for _ in Feed(frontend, requests, max_in_flight=8):
        break
    assert frontend.is_idle


def test_the_deltas_of_a_stream_add_up_to_its_output(make_frontend):
    frontend = make_frontend(nodes=3)
    params = SamplingParams(n=2, max_tokens=20, stop="zz")
    stream = Stream.open(frontend, TextPrompt("abc"), params)
    deltas = list(stream)
    for completion in stream.output.outputs:
        own = [delta for delta in deltas if delta.index == completion.index]
        assert "".join(delta.text for delta in own) == completion.text
        assert [token for delta in own for token in delta.token_ids] == completion.token_ids
        assert [delta.finish_reason for delta in own][-1] == completion.finish_reason


def test_two_streams_over_one_engine_lose_nothing(frontend):
    streams = [Stream.open(frontend, TokenPrompt((5, number)), LONG) for number in range(2)]
    next(streams[0])
    finish(frontend, TokenPrompt((8,)), LONG)  # runs both streams to their end
    for number, stream in enumerate(streams):
        list(stream)
        assert stream.output.outputs[0].token_ids == expected((5, number), 30)


@pytest.mark.parametrize("num_read", [0, 3])
def test_a_closed_stream_aborts_its_request_and_keeps_its_text(frontend, num_read):
    stream = Stream.open(frontend, TextPrompt("abc"), LONG)
    read = [next(stream) for _ in range(num_read)]
    stream.close()
    assert frontend.is_idle
    (completion,) = stream.output.outputs
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == len(read)


def test_a_dropped_stream_aborts_its_request(frontend):
    for _ in Stream.open(frontend, TextPrompt("abc"), LONG):
        break
    assert frontend.is_idle


def test_a_text_that_no_vocabulary_could_fit_is_refused_unread(frontend, monkeypatch):
    longest = frontend.inputs.bounds.max_context * frontend.tokenizer.longest_token

    def read(*_, **__):
        raise AssertionError("it takes seconds")

    with pytest.raises(RequestError, match="context"):
        frontend.inputs.prepare(TextPrompt("a" * longest), SamplingParams())  # by its tokens
    monkeypatch.setattr(frontend.tokenizer, "encode", read)
    with pytest.raises(RequestError, match="characters"):
        frontend.inputs.prepare(TextPrompt("a" * (longest + 1)), SamplingParams())
