import tracemalloc
from datetime import datetime

import pytest

from outrider.errors import ConfigError, RequestError
from outrider.frontend.tokenizer import template_bounds
from outrider.frontend.tokenizer.chat_template import ChatTemplate, NoChatTemplate

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- generation %}
        {{- message['content'] }}
    {%- endgeneration %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n" }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant"] %}
        {{- raise_exception("Only user and assistant\\nroles are supported!") }}
    {%- endif %}
    {{- message.role + ": " + message.content | trim + "<|eot_id|>" }}
{%- endfor %}
"""

HELLO = [{"role": "user", "content": "hello"}]
ENTITY_FREE = "<b> & 'caf\u00e9' \u4f60"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(
        {"default": source},
        special_tokens={"bos_token": "<|begin_of_text|>"},
        now=lambda: datetime(2026, 2, 3),
    )


def render(source: str, messages: object = HELLO, **variables: object) -> str:
    return template(source).render(messages, add_generation_prompt=True, **variables)


def test_chatml_turns_end_and_the_assistant_turn_opens() -> None:
    assert render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_without_generation_prompt_the_text_ends_with_the_last_turn() -> None:
    text = template(CHATML).render(HELLO, add_generation_prompt=False)
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


def test_a_llama_template_gets_the_date_and_its_special_tokens() -> None:
    assert render(LLAMA3) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Today Date: 03 Feb 2026\n<|eot_id|>user: hello<|eot_id|>"
    )


def test_tools_are_written_as_plain_json() -> None:
    text = render(LLAMA3, tools=[{"name": ENTITY_FREE}])
    assert f'{{\n  "name": "{ENTITY_FREE}"\n}}<|eot_id|>' in text


def test_request_variables_reach_the_template() -> None:
    assert "Today Date: yesterday\n" in render(LLAMA3, date_string="yesterday")


def test_requests_with_tools_use_the_template_made_for_them() -> None:
    sources = {"default": "plain", "tool_use": "tools"}
    chat = ChatTemplate(sources, special_tokens={})
    assert chat.render(HELLO, add_generation_prompt=True) == "plain"
    assert chat.render(HELLO, add_generation_prompt=True, tools=[{}]) == "tools"


def test_blocks_on_lines_of_their_own_leave_no_blanks() -> None:
    source = "{% if true %}\nyes\n  {% if documents is none %}\nalone\n  {% endif %}\n{% endif %}"
    assert render(source) == "yes\nalone\n"


def test_loop_controls_work() -> None:
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source) == "01"


def test_a_refusal_of_the_template_is_the_reason_given_in_one_line() -> None:
    with pytest.raises(RequestError, match=r": Only user and assistant roles are supported!$"):
        render(LLAMA3, [{"role": "owl", "content": "hoo"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ 1 + 'one' }}",
        "{{ missing.field.deeper }}",
    ],
)
def test_a_template_that_fails_or_leaves_the_sandbox_fails_the_request(source: str) -> None:
    with pytest.raises(RequestError, match="the chat template refused"):
        render(source)


def test_a_template_that_does_not_compile_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        template("{% for %}")


def test_named_templates_need_a_default() -> None:
    with pytest.raises(ConfigError, match="'default'"):
        ChatTemplate({"rag": ""}, special_tokens={})


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


CALLING = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]}
# As DeepSeek-V3 and R1 have it: calls are written only if the content is none.
CALLS_OF_NONE = """
{%- for message in messages %}
    {%- if message.content is none %}
        {%- for call in message.tool_calls %}{{ 'call ' + call.function.name }}{% endfor %}
    {%- else %}
        {{- message.role + ': ' + message.content + '\\n' }}
    {%- endif %}
{%- endfor %}
"""


def test_a_content_of_null_is_empty() -> None:
    joined = "{% for message in messages %}{{ message.role + ':' + message.content }}{% endfor %}"
    assert render(joined, [CALLING]) == "assistant:"
    assert render(joined, [{"role": "assistant"}]) == "assistant:"
    assert render(joined, [{"role": "user", "content": None}]) == "user:"
    assert render("{{ messages[0].content }}", [CALLING]) == ""


def test_a_template_that_writes_calls_of_none_alone_gets_none() -> None:
    assert render(CALLS_OF_NONE, [*HELLO, CALLING]) == "user: hello\ncall look"
    assert render(CALLS_OF_NONE, [{"role": "assistant"}]) == "assistant: \n"


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages must be"),
        ("hello", "messages must be"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"content": "hello"}], r"messages\[0\] must be an object with a role"),
        ([*HELLO, {"role": "user"}], r"messages\[1\].content must be"),
        ([{"role": "user", "content": 7}], r"messages\[0\].content must be"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\].content may only"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content may only"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: object, place: str) -> None:
    with pytest.raises(RequestError, match=place):
        render(CHATML, messages)


def test_a_model_without_template_names_the_way_out() -> None:
    with pytest.raises(RequestError, match="--raw"):
        NoChatTemplate().render(HELLO, add_generation_prompt=True)


RUNS_ON = [
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "{% for a in range(90000) %}{% for b in range(90000) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "{% for a in range(90000) %}{% set b = range(90000) | map('string') | join %}{% endfor %}",
]
GROWS = [
    "{{ 'a' * 3000000000 }}",
    "{{ 3000000000 * [1] }}",
    "{{ 'a' * messages | length * 10**11 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=2) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% for a in range(90000) %}{{ 'x' * 10000 }}{% endfor %}",
    "{% set x %}{% for a in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ {'a': 1} | tojson(indent=1000000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).join(range(90000) | map('string') | list) }}",
    "{{ range(90000) | list | join('a' * 1000000) }}",
]


@pytest.mark.parametrize("source", RUNS_ON)
def test_a_template_that_runs_on_is_ended(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template_bounds, "MOST_SECONDS", 0.05)
    with pytest.raises(RequestError, match="runs for more than"):
        template(source).render(HELLO, add_generation_prompt=True)


@pytest.mark.parametrize(("num_messages", "limit"), [(1, "0.1 s"), (100, "0.2 s")])
def test_a_template_gets_time_for_each_message(num_messages: int, limit: str) -> None:
    with pytest.raises(RequestError, match=f"runs for more than {limit}"):
        template(RUNS_ON[0]).render(list(HELLO) * num_messages, add_generation_prompt=True)


@pytest.mark.parametrize("source", GROWS)
def test_a_template_that_makes_large_values_is_ended_before_they_exist(source: str) -> None:
    made = template(source)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="the chat template cannot render"):
            made.render(HELLO, add_generation_prompt=True)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def test_code_that_is_nested_too_deeply_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        template("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_a_conversation_of_many_messages_is_rendered() -> None:
    messages = [{"role": "user", "content": "hello" * 20}] * 20_000
    assert template(CHATML).render(messages, add_generation_prompt=False).count("hello") == 400_000


def test_counting_changes_nothing_of_loops() -> None:
    source = (
        "{% for a in [3, 1, 2] if a > 1 %}{{ loop.index }}/{{ loop.length }}:{{ a }}"
        "{% if loop.last %}!{% endif %}{% else %}none{% endfor %}"
        "{% for a in [] %}{{ a }}{% else %}none{% endfor %}"
        "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}"
        "{% for a in [1, 2, 3] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}"
    )
    assert template(source).render(HELLO, add_generation_prompt=True) == "1/2:32/2:2!none1231"
