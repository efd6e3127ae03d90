"""How outputs end: trimmed text, kept tokens, reasons."""

import pytest

from outrider.frontend.output_text import OutputText
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.transcript import StopRules, Transcript
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
def open_transcript(tokenizer):
    def make(named=(), **fields):
        params = SamplingParams(**fields)
        rules = StopRules(named=frozenset(named), is_shown=params.include_stop_str_in_output)
        return Transcript(OutputText(tokenizer, params, prompt=(5,)), rules)

    return make


@pytest.fixture
def ids(tokenizer):
    return lambda text: tokenizer.encode(text, add_special=False)


def test_a_stop_string_across_tokens_ends_text_before_it_and_tokens_with_it(open_transcript, ids):
    transcript = open_transcript(stop="stop")
    transcript.push(update(ids("go sto")))
    assert transcript.text == "go "  # the rest could become the stop string
    transcript.push(update(ids("p on")))  # tokens that were drafted past the end
    assert transcript.text == "go "
    assert transcript.token_ids == ids("go stop")
    assert (transcript.ending.finish, transcript.ending.stop) == ("stop", "stop")


def test_tokens_after_a_stop_string_take_their_logprobs_with_them(open_transcript, ids):
    tokens = ids("abc")
    reported = tuple(TokenLogprobs(chosen=-i, rank=1, top=()) for i in range(3))
    transcript = open_transcript(stop="b")
    transcript.push(update(tokens, logprobs=reported))
    assert transcript.logprobs == list(reported[:2])


def test_a_stop_string_inside_a_round_cuts_its_path(open_transcript, ids):
    tokens = tuple(ids("abc"))
    drafted = RoundTrace(
        tokens=(9, *tokens[:2]), parents=(-1, 0, 1), path=(0, 1, 2), emitted=tokens
    )
    transcript = open_transcript(stop="a")
    transcript.push(update(tokens, rounds=(drafted,)))
    assert (transcript.rounds[0].path, transcript.rounds[0].emitted) == ((0, 1), tokens[:1])


def test_every_token_knows_where_its_text_ends(open_transcript, ids):
    transcript = open_transcript()
    transcript.push(update([*ids("the \u00e9!"), END], "stop"))
    assert transcript.text == "the \u00e9!"
    assert transcript.ends == [3, 4, 4, 5, 6, 6]  # the accent's first byte adds nothing yet


def test_a_stop_string_may_be_shown(open_transcript, ids):
    transcript = open_transcript(stop="stop", include_stop_str_in_output=True)
    transcript.push(update(ids("go stop on")))
    assert transcript.text == "go stop"


def test_the_end_of_sequence_stays_in_the_tokens_without_text_or_reason(open_transcript, ids):
    transcript = open_transcript(skip_special_tokens=False)
    transcript.push(update([*ids("done"), END], "stop"))
    assert transcript.text == "done"
    assert transcript.token_ids == [*ids("done"), END]
    assert (transcript.ending.finish, transcript.ending.stop) == ("stop", None)


def test_a_stop_id_of_the_user_is_named_and_has_no_text(open_transcript, ids):
    (stop,) = ids("!")
    transcript = open_transcript(named=[stop])
    transcript.push(update(ids("hey!"), "stop"))
    assert transcript.text == "hey"
    assert transcript.ending.stop == stop


def test_an_answer_cut_by_length_releases_what_was_held_back(open_transcript, ids):
    transcript = open_transcript(stop="stop")
    transcript.push(update(ids("go sto"), "length"))
    assert transcript.text == "go sto"
    assert (transcript.ending.finish, transcript.ending.stop) == ("length", None)


def test_half_a_character_is_held_back_until_it_is_whole(open_transcript, ids):
    first, second = ids("\u00e9")
    transcript = open_transcript()
    transcript.push(update([first]))
    assert transcript.text == ""
    transcript.push(update([second]))
    assert transcript.text == "\u00e9"


def test_stop_strings_inside_the_first_min_tokens_do_not_count(open_transcript, ids):
    transcript = open_transcript(stop="b", min_tokens=2)
    transcript.push(update(ids("abcabc")))
    assert transcript.text == "abca"


def test_without_detokenizing_there_are_only_tokens(open_transcript, ids):
    transcript = open_transcript(detokenize=False)
    transcript.push(update(ids("abc"), "length"))
    assert (transcript.text, transcript.token_ids) == ("", ids("abc"))


def test_an_aborted_output_keeps_what_it_said(open_transcript, ids):
    transcript = open_transcript(stop="stop")
    transcript.push(update(ids("go st")))
    transcript.abort()
    assert (transcript.text, transcript.ending.finish) == ("go st", "abort")
