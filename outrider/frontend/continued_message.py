"""Renders a conversation with its last message open, so that the answer continues it."""

import secrets
from collections.abc import Callable, Sequence

from outrider.errors import RequestError
from outrider.frontend.prompts import Message, TextPrompt
from outrider.frontend.tokenizer.chat_template import ContentParts, check_messages


def render_continued(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message]
) -> TextPrompt:
    """The prompt without what the template writes after the last message's content.

    A mark after the content finds its end. The content itself may also be in what follows it.
    """
    *earlier, last = check_messages(list(messages))
    if isinstance(last["content"], ContentParts):
        raise RequestError("continue_final_message needs a last message without images")
    content, mark = str(last["content"] or ""), secrets.token_hex(16)
    # A template may drop the blanks at the end, and then they are not part of the prompt.
    text = render([*earlier, {**last, "content": f"{content}{mark} "}])
    end = text.rfind(mark)
    if not content.strip() or end < 0:
        raise RequestError(
            "continue_final_message needs a last message whose content the chat template writes"
        )
    are_blanks_kept = text.startswith(f"{mark} ", end)
    opened = text[:end] if are_blanks_kept else text[:end].rstrip()
    return TextPrompt(opened, add_special=False, answer_begin=content)
