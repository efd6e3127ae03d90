"""The shapes prompts and conversations may have."""

import pytest

from outrider.errors import RequestError
from outrider.frontend.prompts import (
    TextPrompt,
    TokenPrompt,
    list_conversations,
    list_prompts,
    parse_prompt,
)

HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("prompts", "parsed"),
    [
        ("a", [TextPrompt("a")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ({"prompt": "a"}, [TextPrompt("a")]),
        ({"prompt_token_ids": [1, 2]}, [TokenPrompt((1, 2))]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        (["a", {"prompt_token_ids": [1]}, [2]], [TextPrompt("a"), *map(TokenPrompt, [(1,), (2,)])]),
        ([], []),
    ],
)
def test_every_shape_of_prompt_is_understood(prompts, parsed):
    assert [parse_prompt(prompt) for prompt in list_prompts(prompts)] == parsed


@pytest.mark.parametrize(
    "prompt",
    [7, None, {}, {"text": "a"}, {"prompt": 7}, {"prompt_token_ids": "ab"}, [1, "a"], [True]],
)
def test_any_other_shape_is_refused_with_the_ones_that_work(prompt):
    with pytest.raises(RequestError, match="prompt_token_ids"):
        [parse_prompt(each) for each in list_prompts(prompt)]


def test_one_conversation_or_several():
    assert list_conversations([HI]) == [[HI]]
    assert list_conversations([[HI], [HI, HI]]) == [[HI], [HI, HI]]
