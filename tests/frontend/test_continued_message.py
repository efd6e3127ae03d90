"""The last message of a conversation, opened again at the end of its content."""

import pytest

from outrider.errors import RequestError
from outrider.frontend.continued_message import render_continued
from outrider.frontend.tokenizer.chat_template import ChatTemplate

KEPT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TRIMMED = KEPT.replace("m.content", "m.content | trim")
SILENT = "{% for m in messages %}<|{{ m.role }}|>{% endfor %}"


def continued(content, source=KEPT):
    template = ChatTemplate({"default": source}, special_tokens={})
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    return render_continued(
        lambda given: template.render(given, add_generation_prompt=False), messages
    )


@pytest.mark.parametrize("content", ["<", "|", "im_end", "<|im_end|>", "e", " a", "a "])
def test_the_prompt_ends_with_the_content(content):
    opening = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    prompt = continued(content)
    assert prompt.text == opening + content
    assert prompt.answer_begin == content
    assert continued(content, TRIMMED).text == opening + content.strip()


def test_a_content_of_parts_is_continued_as_the_text_they_are():
    parts = [{"type": "text", "text": "<"}, {"type": "text", "text": "a<"}]
    assert continued(parts).text.endswith("assistant\n<\na<")


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_message_without_content_cannot_be_continued(content):
    with pytest.raises(RequestError, match="continue_final_message"):
        continued(content)


def test_a_template_that_writes_no_content_cannot_continue():
    with pytest.raises(RequestError, match="chat template writes"):
        continued("assistant", SILENT)
