"""Reasoning and tool calls of every family: the result does not depend on how text is cut."""

import itertools
import random

import pytest

from outrider.errors import ConfigError
from outrider.frontend.prompts import TextPrompt
from outrider.server.parsers.answer_parsers import CALLS, REASONING, find_parsers
from outrider.server.protocol.tool_call_parser import CallPart
from outrider.server.protocol.tool_choice import ToolUse
from outrider.server.protocol.tools import Tool

TOOLS = [Tool(type="function", function={"name": name}) for name in ("add", "say")]
USE = ToolUse(tools=TOOLS, choice=None, is_parallel=True)
ADD, SAY = ("add", '{"a": 1}'), ("say", '{"text": "b"}')
BAR, LOW = "\uff5c", "\u2581"


def deepseek(words):
    return f"<{BAR}{words.replace(' ', LOW)}{BAR}>"


V3 = deepseek("tool call begin") + "function" + deepseek("tool sep")
V31 = deepseek("tool call begin")
END = deepseek("tool call end")
GLM_ADD = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
GLM_SAY = "<tool_call>say<arg_key>text</arg_key><arg_value>b</arg_value></tool_call>"
HARMONY_ADD = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
THOUGHT = "<|channel|>analysis<|message|>hm < |<|end|><|start|>assistant"

ANSWERS = {  # (reasoning parser, call parser): text: reasoning, content, calls
    ("", "llama3_json"): {
        '{"name": "add", "parameters": {"a": 1}}': ("", "", [ADD]),
        ' <|python_tag|>{"name": "add", "arguments": {"a": 1}}': ("", "", [ADD]),
        '{"name": "add", "parameters": {"a": 1}}; {"name": "say", "parameters": {"text": "b"}}': (
            "",
            "",
            [ADD, SAY],
        ),
        '{"a": 1}': ("", '{"a": 1}', []),
        '{"name": "steal", "parameters": {}}': ("", '{"name": "steal", "parameters": {}}', []),
        'see {"name": "add", "parameters": {}}': ("", 'see {"name": "add", "parameters": {}}', []),
        "<|pyth": ("", "<|pyth", []),
        "  ": ("", "  ", []),
    },
    ("", "mistral"): {
        'ok [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]': ("", "ok", [ADD]),
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]say[ARGS]{"text": "b"}': ("", "", [ADD, SAY]),
        "[TOOL_CALLS]oh": ("", "[TOOL_CALLS]oh", []),
        "a [TOOL": ("", "a [TOOL", []),
    },
    ("", "deepseek_v3"): {
        deepseek("tool calls begin")
        + f'{V3}add\n```json\n{{"a": 1}}\n```{END}\n{V3}say\n```json\n{{"text": "b"}}\n```{END}'
        + deepseek("tool calls end"): ("", "", [ADD, SAY]),
        "ok" + deepseek("tool calls begin") + f'{V31}add{deepseek("tool sep")}{{"a": 1}}{END}': (
            "",
            "ok",
            [ADD],
        ),
        deepseek("tool calls begin") + "oh": ("", deepseek("tool calls begin") + "oh", []),
    },
    ("", "glm45"): {
        f"ok\n{GLM_ADD}\n{GLM_SAY}": ("", "ok", [ADD, SAY]),
        '<tool_call>say<arg_key>text</arg_key><arg_value>"</arg_value></tool_call>': (
            "",
            "",
            [("say", '{"text": "\\""}')],
        ),
        "<tool_call>add</tool_call>": ("", "", [("add", "{}")]),
        "<tool_call>add me</tool_call>": ("", "<tool_call>add me</tool_call>", []),
    },
    ("", "pythonic"): {
        '[add(a=1), say(text="b")]': ("", "", [ADD, SAY]),
        "[add(1)]": ("", "[add(1)]", []),
        "[add(a=f())]": ("", "[add(a=f())]", []),
        "[1, 2]": ("", "[1, 2]", []),
        "see [add(a=1)]": ("", "see [add(a=1)]", []),
    },
    ("qwen3", "hermes"): {
        "<think>\nhm\n</think>\n\nyes": ("hm", "yes", []),
        "yes": ("", "yes", []),
        "<think>hm </think>": ("hm", "", []),
        "<think>hm </thin": ("hm </thin", "", []),
        '<think>a\n\nb</think>ok<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>': (
            "a\n\nb",
            "ok",
            [ADD],
        ),
        "<thi": ("", "<thi", []),
        "a <think>b</think>": ("", "a <think>b</think>", []),
    },
    ("deepseek_r1", ""): {
        "hm\n</think>\n\nyes\n": ("hm", "yes\n", []),
        "<think>\nhm</think>yes": ("hm", "yes", []),
        "hm": ("hm", "", []),
        "": ("", "", []),
    },
    ("gpt_oss", "gpt_oss"): {
        f"{THOUGHT}<|channel|>final<|message|>yes<|return|>": ("hm < |", "yes", []),
        f'{THOUGHT}{HARMONY_ADD}{{"a": 1}}<|call|>': ("hm < |", "", [ADD]),
        "<|channel|>commentary<|message|>I will look.<|end|>": ("", "I will look.", []),
        "plain": ("", "plain", []),
        "<|channel|>analysis<|mess": ("", "<|channel|>analysis<|mess", []),
    },
}
CASES = [
    pytest.param(names, text, expected, id=f"{'-'.join(names)}-{place}")
    for names, answers in ANSWERS.items()
    for place, (text, expected) in enumerate(answers.items())
]


def read(reader, pieces):
    """All that a reader finds in a text that comes in pieces."""
    reasoning = content = ""
    calls: list[list[str]] = []
    for delta in [*map(reader.push, pieces), reader.finish()]:
        reasoning, content = reasoning + delta.reasoning, content + delta.content
        for part in delta.calls:
            assert isinstance(part, CallPart)
            if part.name:
                assert part.index == len(calls)
                calls.append([part.name, ""])
            calls[-1][1] += part.arguments
    return reasoning, content, [tuple(call) for call in calls], reader.has_calls


@pytest.mark.parametrize(("names", "text", "expected"), CASES)
def test_every_way_to_cut_a_text_gives_the_same_answer(names, text, expected):
    parsers, rng = find_parsers(reasoning=names[0], calls=names[1]), random.Random(7)
    for trial in range(30):
        cuts = (
            range(1, len(text))
            if trial == 0
            else [at for at in range(1, len(text)) if rng.random() < 0.3]
        )
        edges = [0, *cuts, len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        found = read(parsers.reader(USE, TextPrompt("")), pieces if trial < 29 else [text])
        assert found == (*expected, bool(expected[2]))


def test_a_prompt_that_opens_reasoning_lets_the_answer_begin_inside():
    parsers = find_parsers(reasoning="qwen3", calls="")
    prompt = TextPrompt("<think></think> <|im_start|>assistant\n<think>\n")
    inside = parsers.reader(USE, prompt)
    assert read(inside, ["hm", "</think>yes"])[:2] == ("hm", "yes")
    prompt = TextPrompt("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    outside = parsers.reader(USE, prompt)
    assert read(outside, ["hm"])[:2] == ("", "hm")


def test_a_tag_that_a_user_wrote_opens_no_reasoning():
    parsers = find_parsers(reasoning="qwen3", calls="")
    prompt = TextPrompt("<|im_start|>user\nwhat is <think><|im_end|>\n<|im_start|>assistant\n")
    assert read(parsers.reader(USE, prompt), ["yes"])[:2] == ("", "yes")
    assert not parsers.thinking(3, prompt).is_open


def test_a_continued_message_decides_whether_its_reasoning_is_open():
    parsers = find_parsers(reasoning="qwen3", calls="")
    for begin, expected in (
        ("<think>hm", ("so", "")),
        ("<think>hm</think>a", ("", "so")),
        ("a", ("", "so")),
    ):
        prompt = TextPrompt(f"user: <think>\nassistant: {begin}", answer_begin=begin)
        assert read(parsers.reader(USE, prompt), ["so"])[:2] == expected


def test_parsers_have_the_names_of_other_servers():
    for names, flag in ((REASONING, "reasoning"), (CALLS, "calls")):
        for name in names:
            find_parsers(**{"reasoning": "", "calls": "", flag: name.replace("_", "-")})
    with pytest.raises(ConfigError, match="--tool-call-parser other is unknown; use one of"):
        find_parsers(reasoning="", calls="other")
