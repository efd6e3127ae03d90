"""Tool calls are read from an answer the same way, however its text is cut into deltas."""

import json
import random

import pytest

from outrider.server.protocol.tool_call_parser import (
    AnswerDelta,
    CallPart,
    ForcedReader,
    PlainReader,
    ToolBlockReader,
    read_whole,
)

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SAY = '<tool_call>\n{"name": "say", "arguments": {"text": "a </tool_call> \\" b"}}\n</tool_call>'
ADDED = ("add", '{"a": 1}')
SAID = ("say", '{"text": "a </tool_call> \\" b"}')
STRANGE = '<tool_call>{"name": "steal", "arguments": {}}</tool_call>'
BROKEN = '<tool_call>{"name": "add", argu}</tool_call>'
ENDLESS = '<tool_call>{"name": "add</tool_call>'  # the tag is within the string
UNBALANCED = '<tool_call>\n{"name": "add}\n</tool_call>'

BLOCKS = {  # text: content, calls
    "": ("", []),
    "plain text ": ("plain text ", []),
    "\n ": ("\n ", []),
    ADD: ("", [ADDED]),
    f"\n{ADD}\n": ("", [ADDED]),
    f"Let me see.\n{ADD}\n{SAY}\n": ("Let me see.", [ADDED, SAID]),
    f"a\n{ADD}\nb": ("a\n\nb", [ADDED]),
    f" {ADD} b ": ("b", [ADDED]),
    f"{STRANGE}{ADD}": (STRANGE, [ADDED]),
    f"{BROKEN} {ADD}": (BROKEN, [ADDED]),
    f"{ENDLESS} {ADD[:-1]}": (f"{ENDLESS} {ADD[:-1]}", []),
    f"{ENDLESS}\n{ADD}</tool_call>{ADD}": (f"{ENDLESS}\n{ADD}</tool_call>", [ADDED]),
    f"{UNBALANCED}\n{ADD}": (UNBALANCED, [ADDED]),
    ADD.removesuffix("</tool_call>"): ("", [ADDED]),
    ADD[:-20]: (ADD[:-20], []),
    "1 < 2 <tool": ("1 < 2 <tool", []),
    f"<<tool_call{ADD}": ("<<tool_call", [ADDED]),
    '<tool_call>{"name": "add"}</tool_call>': ("", [("add", "{}")]),
    '<tool_call>["add"]</tool_call>': ('<tool_call>["add"]</tool_call>', []),
    '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>': (
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        [],
    ),
    '<tool_call>{"name": "add", "arguments": {"a": "\\ud800 \\u00e9"}}</tool_call>': (
        "",
        [("add", '{"a": "\\ud800 \\u00e9"}')],
    ),
}
FORCED = {
    "": ("", [], False),
    '{"name": "a': ('{"name": "a', [], False),
    '{"name": "add", "arguments": ': ('{"name": "add", "arguments": ', [], False),
    '{"name": "add", "arguments": {}}': ("", [("add", "{}")], True),
    ' {\n"name" :"add" ,"arguments":  { "a":{}} \n} ': ("", [("add", '{ "a":{}}')], True),
    '{"name": "add", "arguments": {"a": "}} "}}': ("", [("add", '{"a": "}} "}')], True),
    '{"name": "add", "arguments": {"a": "}} ': ("", [("add", '{"a": "}} ')], False),
    '{"name": "add", "arguments": {"a": 1}': ("", [("add", '{"a": 1}')], False),
    '{"name": "add", "arguments": {"a": 1e999}}': ("", [("add", '{"a": 1e999}')], True),
}


def read_in_pieces(reader, pieces):
    """Content and calls as a client adds them up."""
    gains = [*(reader.push(piece) for piece in pieces), reader.finish()]
    calls = []
    for part in (part for gain in gains for part in gain.calls):
        if part.name:
            assert part.index == len(calls)
            calls.append([part.name, ""])
        calls[part.index][1] += part.arguments
    return "".join(gain.content for gain in gains), [tuple(call) for call in calls]


def cut(text, rng):
    places = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 12)))
    ends = [*places, len(text)]
    return [text[begin:end] for begin, end in zip([0, *places], ends, strict=True)]


def blocks(most=None):
    return ToolBlockReader(["add", "say"], most=most)


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks_of_known_functions_are_calls_and_the_rest_is_content(text):
    reader = blocks()
    content, calls = read_in_pieces(reader, [text])
    assert (content, calls) == BLOCKS[text]
    assert reader.has_calls == bool(calls)


@pytest.mark.parametrize("text", FORCED)
def test_a_forced_call_is_passed_on_as_it_is_spelled(text):
    reader = ForcedReader()
    assert (*read_in_pieces(reader, [text]), reader.has_calls) == FORCED[text]


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_changes_what_is_read(seed):
    rng = random.Random(seed)
    scraps = [*BLOCKS, ADD, SAY, BROKEN, "</tool_call>", "<tool_call>", '"', "\\", " ", "x<"]
    for _ in range(20):
        text = "".join(rng.choices(scraps, k=rng.randint(1, 5)))
        whole = read_in_pieces(blocks(), [text])
        assert read_in_pieces(blocks(), cut(text, rng)) == whole, (seed, text)
        assert read_in_pieces(blocks(), text) == whole, (seed, text)  # one by one


@pytest.mark.parametrize("text", FORCED)
def test_no_cut_changes_a_forced_call(text):
    rng = random.Random(7)
    for pieces in (*(cut(text, rng) for _ in range(50)), list(text)):
        assert read_in_pieces(ForcedReader(), pieces) == FORCED[text][:2], pieces


def test_text_is_passed_on_as_soon_as_it_is_no_tag():
    reader = blocks()
    assert reader.push("so <tool").content == "so"
    assert reader.push("s are <").content == " <tools are"
    assert reader.push("b>").content == " <b>"


def test_arguments_of_a_forced_call_grow_once_the_name_is_known():
    reader = ForcedReader()
    assert reader.push('{"name": "add", "arg').calls == ()
    first = reader.push('uments": {"a": [1,')
    assert first.calls == (CallPart(index=0, name="add", arguments='{"a": [1,'),)
    assert reader.push(" 2").calls == (CallPart(index=0, name="", arguments=" 2"),)


def test_calls_beyond_the_most_are_dropped():
    text = f"{ADD}{SAY}"
    assert read_in_pieces(blocks(most=1), [text]) == ("", [ADDED])


def test_a_whole_answer_has_every_call_in_one_part():
    cut_call = '{"name": "add", "arguments": {"a": {}'
    (call,) = read_whole(ForcedReader(), cut_call).calls
    assert call == CallPart(index=0, name="add", arguments='{"a": {}')
    assert read_whole(PlainReader(), ADD) == AnswerDelta(content=ADD, calls=())


def test_arguments_are_json_that_can_be_sent():
    text = '<tool_call>{"name": "add", "arguments": {"a": "\\u00e9"}}</tool_call>'
    (call,) = read_whole(blocks(), text).calls
    assert call.arguments == '{"a": "\u00e9"}'
    assert json.loads(call.arguments) == {"a": "\u00e9"}


def test_a_long_hostile_text_is_read_in_linear_time():
    text = '<tool_call>"\\' * 20_000 + "<" * 20_000 + "</tool_call>"
    pieces = [text[begin : begin + 50] for begin in range(0, len(text), 50)]
    content, calls = read_in_pieces(blocks(), pieces)
    assert content == text
    assert calls == []
