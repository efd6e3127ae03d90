"""Images in bodies of other APIs: parts of a chat message, or refused with the fix."""

import pytest

from outrider.errors import RequestError
from outrider.frontend.images.given_image import GivenImage
from outrider.frontend.images.remote_image import RemoteImage
from outrider.frontend.prompts import TextPrompt
from outrider.server.async_engine import _ENDLESS, prompt_size
from outrider.server.protocol.messages_protocol import MessagesTurn
from outrider.server.protocol.responses_protocol import InputMessage, InputResult

URL = "data:image/png;base64,AAAA"
PART = {"type": "image_url", "image_url": {"url": URL}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def message_turns(*blocks):
    return MessagesTurn(role="user", content=list(blocks)).turns


def response_turn(*parts):
    return InputMessage(role="user", content=list(parts)).turn


@pytest.mark.parametrize("kind", [[], {}, None, 5])
def test_a_part_whose_type_is_no_text_is_refused(kind):
    for read in (message_turns, response_turn):
        with pytest.raises(RequestError):
            read({"type": kind})
    with pytest.raises(RequestError):
        message_turns({"type": kind}, BLOCK)
    with pytest.raises(RequestError):
        response_turn({"type": kind}, {"type": "input_image", "image_url": URL})


def test_results_of_tools_may_have_images():
    (turn,) = message_turns({"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]})
    assert (turn["role"], turn["content"]) == ("tool", [PART])
    output = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": URL}]
    turn = InputResult(type="function_call_output", call_id="t", output=output).turn
    assert (turn["role"], turn["content"]) == ("tool", [{"type": "text", "text": "a"}, PART])


def test_results_of_tools_without_images_stay_texts():
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content, text in ((blocks, "a\nb"), ("a", "a"), (None, ""), ([], "")):
        (turn,) = message_turns({"type": "tool_result", "content": content})
        assert turn["content"] == text
    with pytest.raises(RequestError, match="list of blocks"):
        message_turns({"type": "tool_result", "content": ["a"]})


@pytest.mark.parametrize(
    ("read", "part", "fix"),
    [
        (
            message_turns,
            {"type": "image", "source": {"type": "base64", "data": "AA"}},
            "media_type",
        ),
        (message_turns, {"type": "image", "source": {"type": "file", "file_id": "f"}}, "base64"),
        (message_turns, {"type": "image"}, "source"),
        (response_turn, {"type": "input_image", "file_id": "f"}, "data: URL"),
    ],
)
def test_images_in_other_forms_are_refused_with_the_fix(read, part, fix):
    with pytest.raises(RequestError, match=fix):
        read(part)


def test_only_prompts_with_images_to_download_wait_for_hosts():
    """They have threads of their own."""
    remote = GivenImage(RemoteImage("https://example.com/a.png", ("example.com",)))
    texts = [TextPrompt("a" * 2**20), TextPrompt("a", images=(GivenImage(b""),) * 16)]
    assert all(prompt_size(each) < _ENDLESS for each in texts)
    assert prompt_size(TextPrompt("a", images=(GivenImage(b""), remote))) >= _ENDLESS
