"""Opens the last message of a rendered conversation again, so that the answer continues it."""

from collections.abc import Sequence

from outrider.errors import RequestError
from outrider.frontend.prompts import Message
from outrider.frontend.tokenizer.chat_template import check_messages


def final_content(messages: Sequence[Message]) -> str:
    return str(check_messages(list(messages))[-1]["content"] or "")


def open_final_message(text: str, content: str) -> str:
    """The rendered text without what the template writes after the last message's content."""
    begin = text.rfind(content.strip())
    if not content.strip() or begin < 0:
        raise RequestError(
            "continue_final_message needs a last message whose content the chat template writes"
        )
    # A template may drop the blanks at the end, and then they are not part of the prompt.
    is_whole = text.startswith(content.lstrip(), begin)
    return text[: begin + len(content.lstrip() if is_whole else content.strip())]
