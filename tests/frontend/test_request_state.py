"""How outputs end: trimmed text, kept tokens, reasons."""

import pytest

from outrider.frontend.request_state import DeltaReader, OutputState, StopRules, text_stream
from outrider.frontend.sampling_params import SamplingParams
from outrider.wire.step_result import RoundTrace, TokenLogprobs
from outrider.wire.submission import Progress, RequestUpdate

END = 0  # the end of sequence of the test tokenizer


def update(tokens, finish="running", logprobs=(), rounds=()):
    progress = Progress(cached=0, rounds=1, drafted=0, accepted_per_depth=(), preemptions=0)
    return RequestUpdate(
        request_id="0",
        tokens=tuple(tokens),
        logprobs=logprobs,
        finish=finish,
        progress=progress,
        rounds=rounds,
    )


@pytest.fixture
def open_output(tokenizer):
    def make(named=(), **fields):
        params = SamplingParams(**fields)
        rules = StopRules(named=frozenset(named), is_shown=params.include_stop_str_in_output)
        return OutputState(text_stream(params, (5,), tokenizer), rules)

    return make


@pytest.fixture
def ids(tokenizer):
    return lambda text: tokenizer.encode(text, add_special=False)


def test_an_error_is_a_delta_of_its_own_after_the_tokens_before_it(open_output):
    output = open_output()
    output.push(update([6, 7], finish="error"))
    reader, deltas = DeltaReader(0, output), []
    while reader.has_delta:
        deltas.append(reader.take())
    assert [(each.token_ids, each.finish_reason) for each in deltas] == [
        ([6, 7], None),
        ([], "error"),
    ]
    assert deltas[0].text == output.text


def test_a_stop_string_across_tokens_ends_text_before_it_and_tokens_with_it(open_output, ids):
    output = open_output(stop="stop")
    output.push(update(ids("go sto")))
    assert output.text == "go "  # the rest could become the stop string
    output.push(update(ids("p on")))  # tokens that were drafted past the end
    assert output.text == "go "
    assert output.token_ids == ids("go stop")
    assert (output.ending.finish, output.ending.stop) == ("stop", "stop")


def test_tokens_after_a_stop_string_take_their_logprobs_with_them(open_output, ids):
    tokens = ids("abc")
    reported = tuple(TokenLogprobs(chosen=-i, rank=1, top=()) for i in range(3))
    output = open_output(stop="b")
    output.push(update(tokens, logprobs=reported))
    assert output.logprobs == list(reported[:2])


def test_a_stop_string_inside_a_round_cuts_its_path(open_output, ids):
    tokens = tuple(ids("abc"))
    drafted = RoundTrace(
        tokens=(9, *tokens[:2]), parents=(-1, 0, 1), path=(0, 1, 2), emitted=tokens
    )
    output = open_output(stop="a")
    output.push(update(tokens, rounds=(drafted,)))
    assert (output.rounds[0].path, output.rounds[0].emitted) == ((0, 1), tokens[:1])


def test_every_token_knows_where_its_text_ends(open_output, ids):
    output = open_output()
    output.push(update([*ids("the \u00e9!"), END], "stop"))
    assert output.text == "the \u00e9!"
    assert output.ends == [3, 4, 4, 5, 6, 6]  # the accent's first byte adds nothing yet


def test_a_stop_string_may_be_shown(open_output, ids):
    output = open_output(stop="stop", include_stop_str_in_output=True)
    output.push(update(ids("go stop on")))
    assert output.text == "go stop"


def test_the_end_of_sequence_stays_in_the_tokens_without_text_or_reason(open_output, ids):
    output = open_output(skip_special_tokens=False)
    output.push(update([*ids("done"), END], "stop"))
    assert output.text == "done"
    assert output.token_ids == [*ids("done"), END]
    assert (output.ending.finish, output.ending.stop) == ("stop", None)


def test_a_stop_id_of_the_user_is_named_and_has_no_text(open_output, ids):
    (stop,) = ids("!")
    output = open_output(named=[stop])
    output.push(update(ids("hey!"), "stop"))
    assert output.text == "hey"
    assert output.ending.stop == stop


def test_an_answer_cut_by_length_releases_what_was_held_back(open_output, ids):
    output = open_output(stop="stop")
    output.push(update(ids("go sto"), "length"))
    assert output.text == "go sto"
    assert (output.ending.finish, output.ending.stop) == ("length", None)


def test_half_a_character_is_held_back_until_it_is_whole(open_output, ids):
    first, second = ids("\u00e9")
    output = open_output()
    output.push(update([first]))
    assert output.text == ""
    output.push(update([second]))
    assert output.text == "\u00e9"


def test_stop_strings_inside_the_first_min_tokens_do_not_count(open_output, ids):
    output = open_output(stop="b", min_tokens=2)
    output.push(update(ids("abcabc")))
    assert output.text == "abca"


def test_without_detokenizing_there_are_only_tokens(open_output, ids):
    output = open_output(detokenize=False)
    output.push(update(ids("abc"), "length"))
    assert (output.text, output.token_ids) == ("", ids("abc"))


def test_an_aborted_output_keeps_its_text(open_output, ids):
    output = open_output(stop="stop")
    output.push(update(ids("go st")))
    output.abort()
    assert (output.text, output.ending.finish) == ("go st", "abort")
