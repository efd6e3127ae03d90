"""The messages of a chat in a short context."""

import pytest

from outrider.cli.conversation import Conversation
from outrider.errors import ConfigError, RequestError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer


def contents(question):
    return [message["content"] for message in question.messages]


def test_history_is_part_of_the_next_question(frontend):
    conversation = Conversation(frontend, system="be kind", max_tokens=8)
    conversation.add_answer(conversation.make_question("one"), "two")
    question = conversation.make_question("three")
    assert contents(question) == ["one", "two", "three"]
    assert question.prompt.text.startswith("<|im_start|>system\nbe kind<|im_end|>")
    assert question.prompt.text.endswith("<|im_start|>assistant\n")


def test_a_question_that_was_never_answered_is_forgotten(frontend):
    conversation = Conversation(frontend, system="", max_tokens=8)
    conversation.make_question("one")
    assert contents(conversation.make_question("two")) == ["two"]


def test_the_oldest_exchange_goes_when_the_context_is_full(frontend):
    conversation = Conversation(frontend, system="", max_tokens=8)
    dropped = []
    for number in range(4):
        question = conversation.make_question(f"question {number}")
        conversation.add_answer(question, "an answer of some length")
        dropped.append(question.num_dropped)
    assert dropped == [0, 0, 2, 2]
    assert contents(question)[0] == "question 2"


def test_a_message_longer_than_the_context_is_refused_and_not_remembered(frontend):
    conversation = Conversation(frontend, system="", max_tokens=8)
    with pytest.raises(RequestError, match="shorten it"):
        conversation.make_question("a" * 200)
    assert contents(conversation.make_question("short")) == ["short"]


def test_reset_keeps_the_system_message(frontend):
    conversation = Conversation(frontend, system="be kind", max_tokens=8)
    conversation.add_answer(conversation.make_question("one"), "two")
    conversation.reset()
    question = conversation.make_question("three")
    assert contents(question) == ["three"]
    assert "be kind" in question.prompt.text


def test_a_model_without_chat_template_cannot_chat(make_frontend):
    with pytest.raises(ConfigError, match="generate --raw"):
        Conversation(make_frontend(NoTokenizer(eos_ids=frozenset())), system="", max_tokens=8)
