"""A second process compiles grammars: bad ones are refused with a reason, in bounded time."""

import json

import pytest
from support.tiny import VOCAB
from support.tiny_vocabulary import SPECS, TINY

from outrider.errors import CapacityError, RequestError
from outrider.structured import compiler_thread
from outrider.structured import grammar_cache as cache_module
from outrider.structured.grammar_bounds import MAX_DEPTH, check_bounds
from outrider.structured.grammar_cache import NO_GRAMMARS, GrammarCache
from outrider.wire.grammar_spec import GrammarSpec

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def grammar_cache():
    grammar_cache = GrammarCache(lambda: TINY, vocab_size=VOCAB + 5)  # a model with unused ids
    yield grammar_cache
    grammar_cache.close()


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return json.dumps(schema)


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_good_grammar_is_compiled_once(grammar_cache, spec):
    grammar_cache.check(spec)
    assert grammar_cache.compile(spec) is grammar_cache.compile(spec)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": "objct"}', "the JSON schema is refused: .*objct"),
        ("regex", "(a", "the regex is refused: .*parenthesis"),
        ("ebnf", "root ::= absent", "the EBNF grammar is refused: .*absent"),
        ("ebnf", 'other ::= "a"', "the EBNF grammar is refused"),
        ("structural_tag", "{}", "the structural tag is refused"),
    ],
)
def test_a_bad_grammar_is_refused_with_the_reason(grammar_cache, kind, text, reason):
    with pytest.raises(RequestError, match=reason) as refusal:
        grammar_cache.check(GrammarSpec(kind=kind, text=text))
    assert len(str(refusal.value)) < 300
    assert "/project" not in str(refusal.value)  # no source lines of the library


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": ', "the JSON schema is not JSON"),
        ("regex", "a" * 5000, "the regex has 5000 characters; use at most 4096"),
        ("regex", "(" * 100 + ")" * 100, "nested more than 64 levels"),
        ("json_schema", nested(MAX_DEPTH), "nested more than 64 levels"),
        ("json_schema", "[" * 50_000, "nested more than 64 levels|not JSON"),
    ],
)
def test_a_grammar_out_of_bounds_is_refused_before_it_is_compiled(kind, text, reason):
    with pytest.raises(RequestError, match=reason):
        check_bounds(GrammarSpec(kind=kind, text=text))


BOMBS = [
    ("regex", "(a|aa)*" * 500),
    ("json_schema", json.dumps({"type": "string", "pattern": "(a{1,9999}){1,9999}"})),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), BOMBS)
def test_a_bomb_is_refused_and_the_next_grammar_is_served(grammar_cache, monkeypatch, kind, text):
    grammar_cache.check(SPECS["choice"])  # the process runs
    monkeypatch.setattr(compiler_thread, "TIMEOUT_S", 1.0)
    spec = GrammarSpec(kind=kind, text=text)
    refusals = []
    for _ in range(2):
        # A quick machine compiles some of them in a second, and then cannot match them.
        with pytest.raises(RequestError, match=r"too (complex|ambiguous)") as caught:
            grammar_cache.check(spec)
        refusals.append(str(caught.value))
    assert refusals[0] == refusals[1]
    if "too complex" in refusals[0]:
        assert grammar_cache._compiler._process is None  # the refusal was cached
    monkeypatch.undo()
    grammar_cache.check(GrammarSpec(kind="regex", text=f"[ab]{{{len(text)}}}"))


@pytest.mark.slow
def test_a_grammar_that_grows_slower_with_every_token_is_refused(grammar_cache):
    with pytest.raises(RequestError, match="too ambiguous"):
        grammar_cache.check(GrammarSpec(kind="regex", text="((a{1,1000}){1,1000}){1,1000}"))


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(grammar_cache):
    grammar_cache.check(SPECS["choice"])
    grammar_cache._compiler._process._process.kill()
    grammar_cache._compiler._process._process.wait()
    grammar_cache.check(GrammarSpec(kind="regex", text="[0-9]{8}"))


def test_old_grammars_are_evicted(grammar_cache, monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_CACHED", 3)
    for num in range(1, 6):
        grammar_cache.check(GrammarSpec(kind="regex", text=f"a{{{num}}}"))
    assert len(grammar_cache._futures) <= 4


def test_an_engine_without_text_refuses_every_grammar():
    with pytest.raises(RequestError, match="needs a tokenizer"):
        NO_GRAMMARS.check(SPECS["choice"])


def test_brackets_are_counted_as_they_nest():
    check_bounds(GrammarSpec(kind="regex", text="(a)" * 1000))


@pytest.mark.slow
def test_a_cache_with_too_many_pending_grammars_refuses_new_ones_but_not_known_ones():
    grammar_cache = GrammarCache(lambda: TINY, vocab_size=VOCAB, max_pending=2)
    specs = [GrammarSpec(kind="regex", text=text) for text in ("a", "b", "c")]
    try:
        futures = [grammar_cache.compile(spec) for spec in specs[:2]]
        with pytest.raises(CapacityError, match="try again"):
            grammar_cache.compile(specs[2])
        assert grammar_cache.compile(specs[0]) is futures[0]
        for future in futures:
            future.result(120)
        grammar_cache.compile(specs[2]).result(120)
    finally:
        grammar_cache.close()
