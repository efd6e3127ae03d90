"""Prompts about texts: the target is asked to summarise or rewrite its own answers, or to go on
with its own code.

Few prompts of a file are long. A head that has seen only short ones drafts badly where an answer
repeats parts of its prompt.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from outrider.train.conversations import TrainingConversation
from outrider.train.documents import Document

SOURCE = "self_texts"

_MIN_TOKENS = 60  # of an answer that is worth a summary
_REQUESTS = (
    "Summarize: {text}",
    "Summarize: {text}",
    "Summarize the following text in three sentences.\n\n{text}",
    "Rewrite the following text in simpler words.\n\n{text}",
    "Correct and improve this text.\n\n{text}",
    "{text}\n\nWhat are the key points of this text?",
)

_CODE_REQUESTS = (
    "Complete the code.\n\n{text}",
    "Complete this function.\n\n{text}",
    "Finish the following code:\n\n```python\n{text}\n```",
)
_FUNCTION = re.compile(r"^(?:async )?def .*\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)

Decode = Callable[[Sequence[int]], str]


def text_conversations(
    documents: Sequence[Document],
    decode: Decode,
    *,
    seed: int,
    max_tokens: int,  # of a text
) -> list[TrainingConversation]:
    """One prompt for each text. Texts are long answers, joined at random up to a drawn length.

    Each function in an answer gives one more, with the beginning of the function.
    """
    draw = random.Random(seed)
    turns = []
    for text in _texts(documents, decode, draw, max_tokens=max_tokens):
        turns.append(draw.choice(_REQUESTS).format(text=text))
        turns += [draw.choice(_CODE_REQUESTS).format(text=code) for code in _functions(text, draw)]
    return [
        TrainingConversation(
            id=f"{SOURCE}-{seed}-{number}", source=SOURCE, system="", turns=(turn,), tokens=()
        )
        for number, turn in enumerate(turns)
    ]


def _functions(text: str, draw: random.Random) -> Iterator[str]:
    """The beginning of every Python function in a text: at most half of its lines."""
    for found in _FUNCTION.finditer(text + "\n"):
        lines = found[0].rstrip().splitlines()
        yield "\n".join(lines[: draw.randint(1, max(len(lines) // 2, 1))])


def _texts(
    documents: Sequence[Document], decode: Decode, draw: random.Random, *, max_tokens: int
) -> Iterator[str]:
    answers = [
        document.tokens[start : min(stop, start + max_tokens)]
        for document in documents
        for start, stop in document.answers
        if stop - start >= _MIN_TOKENS
    ]
    draw.shuffle(answers)
    joined: list[str] = []
    size, wanted = 0, draw.randint(_MIN_TOKENS, max_tokens)
    for answer in answers:
        if joined and size + len(answer) > wanted:
            yield "\n\n".join(joined)
            joined, size, wanted = [], 0, draw.randint(_MIN_TOKENS, max_tokens)
        joined.append(decode(answer).strip())
        size += len(answer)
    if joined:
        yield "\n\n".join(joined)
