"""Answers: several turns in one document, both temperatures, and an incomplete last line."""

import pytest

from outrider import LLM
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.train import gather_answers, text_prompts
from outrider.train.answers import answer_all, plan_tasks, read_complete_documents
from outrider.train.conversations import TrainingConversation, read_conversations
from outrider.train.dialogue import AnswerSampling
from outrider.train.documents import Document, count_tokens, line_of, read_documents
from outrider.train.draft_vocabulary import choose_draft_tokens, coverage
from outrider.train.text_prompts import text_conversations

SAMPLING = AnswerSampling(
    temperatures=(0.0, 0.8), max_tokens=6, max_context=60, seed=0, limit_s=1e9
)


def conversation(name, *turns, tokens=()):
    return TrainingConversation(id=name, source="", system="", turns=turns, tokens=tokens)


def answer(folder, conversations, path):
    llm = LLM(folder, draft="none", device="cpu", max_model_len=64)
    tasks = plan_tasks(conversations, SAMPLING, [])
    skipped = answer_all(
        llm.frontend, tasks, SAMPLING, path, max_in_flight=4, on_answer=lambda _tokens: None
    )
    return read_documents(path), skipped, llm


def test_turns_of_one_conversation_share_a_document_and_every_answer_has_a_span(
    chat_folder, tmp_path
):
    path = tmp_path / "answers.jsonl"
    conversations = [conversation("two", "hello", "more"), conversation("one", "abc")]
    documents, skipped, llm = answer(chat_folder, conversations, path)
    assert not skipped
    by_turns = {
        name: [each for each in documents if each.id == name and each.temperature == 0]
        for name in ("one", "two")
    }
    (single,) = by_turns["one"]
    ((start, _),) = single.answers
    encode = llm.frontend.tokenizer.encode
    assert list(single.tokens[:start]) == encode("uabcza", add_special=False)
    # The template renders an answer that was cut short to other tokens than were generated.
    parts = by_turns["two"]
    assert sum(len(each.answers) for each in parts) == 2
    last = parts[-1]
    stop = last.answers[-1][0]
    assert list(last.tokens[:stop])[-6:] == encode("umoreza"[-6:], add_special=False)


def test_every_prompt_gets_its_first_answer_before_any_gets_its_second():
    conversations = [conversation(str(i), "x") for i in range(10)]
    tasks = plan_tasks(conversations, SAMPLING, [])
    first, second = tasks[:10], tasks[10:]
    assert {each.conversation.id for each in first} == {each.conversation.id for each in second}
    assert [each.temperature for each in first] == [0.0, 0.8] * 5
    done = Document(id="3", source="", tokens=(), answers=(), temperature=0.8, seed=0)
    assert len(plan_tasks(conversations, SAMPLING, [done])) == 19


def test_a_prompt_longer_than_the_context_is_skipped(target_folder, tmp_path):
    conversations = [conversation("a", tokens=(5,) * 59), conversation("b", tokens=(5, 6))]
    documents, skipped, _ = answer(target_folder, conversations, tmp_path / "answers.jsonl")
    assert skipped == 2
    assert {each.id for each in documents} == {"b"}


def test_an_incomplete_last_line_is_cut_off_and_complete_lines_stay(tmp_path):
    path = tmp_path / "answers.jsonl"
    one = Document(id="a", source="s", tokens=(1, 2), answers=((1, 2),), temperature=0.8, seed=3)
    path.write_text(line_of(one) + line_of(one)[:20])
    assert read_complete_documents(path) == [one]
    assert path.read_text() == line_of(one)


def test_answers_are_read_from_a_compressed_file(tmp_path):
    import gzip

    one = Document(id="a", source="s", tokens=(1, 2), answers=((1, 2),), temperature=0.0, seed=3)
    path = tmp_path / "answers.jsonl.gz"
    path.write_bytes(gzip.compress(line_of(one).encode()))
    assert read_documents(path) == [one]


def test_the_draft_vocabulary_has_the_most_frequent_tokens_and_the_stop_tokens_that_occur():
    def document(*tokens):
        return Document(
            id="", source="", tokens=(9, *tokens), answers=((1, 9),), temperature=0.0, seed=0
        )

    counts = count_tokens([document(5, 5, 5, 7, 7, 2), document(5, 8, 8)])
    assert counts[9] == 0  # prompts do not count
    ids = choose_draft_tokens(counts, size=3, vocab=10, always=[2, 3])
    assert ids.tolist() == [2, 5, 7]  # 3 is a stop token too, but never occurs
    assert coverage(counts, ids) == pytest.approx(7 / 9)


@pytest.mark.parametrize(
    ("line", "turns"),
    [
        ('{"prompt": "a"}', ("a",)),
        ('"a"', ("a",)),
        ('{"turns": ["a", "b"]}', ("a", "b")),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"},'
            ' {"role": "user", "content": "b"}]}',
            ("a", "b"),
        ),
    ],
)
def test_prompts_are_read_from_every_accepted_form_without_their_answers(line, turns, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(f"{line}\n" * 8)
    assert [each.turns for each in read_conversations(path)] == [turns] * 8


@pytest.mark.parametrize("line", ["{", "{}", '{"prompt": ""}', '{"turns": [1]}', '{"messages": 1}'])
def test_a_bad_line_is_refused_with_its_line_number(line, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' * 8 + line + "\n")
    with pytest.raises(ConfigError, match="line 9"):
        read_conversations(path)


def test_several_turns_for_a_model_without_chat_template_are_refused(
    target_folder, tmp_path, capsys
):
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["a", "b"]}\n' * 8)
    where = ["--model", str(target_folder), "--prompts", str(path), "--out", str(tmp_path / "out")]
    sizes = ["--device", "cpu", "--length", "64", "--draft-vocab", "60"]
    assert run(["train", "eagle3", *where, *sizes]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_texts_are_long_answers_of_the_target_in_prompts_of_at_most_the_wanted_size():
    long, short = tuple(range(100, 170)), tuple(range(9))
    documents = [
        Document(id=str(i), source="", tokens=(1, 2, *each), answers=((2, 2 + len(each)),),
                 temperature=0.0, seed=0)
        for i, each in enumerate([long, short] * 4)
    ]  # fmt: skip

    def decode(tokens):
        return " ".join(map(str, tokens))

    prompts = text_conversations(documents, decode, seed=3, max_tokens=150)
    assert prompts == text_conversations(documents, decode, seed=3, max_tokens=150)
    texts = [each.turns[0] for each in prompts]
    assert sum(text.count(decode(long)) for text in texts) == 4  # each answer once, whole
    assert all(len([word for word in text.split() if word.isdigit()]) <= 150 for text in texts)
    assert len({each.id for each in prompts}) == len(prompts) > 1


def test_functions_in_texts_become_prompts_to_go_on_with_their_beginning():
    code = "Here:\n\ndef add(a, b):\n    c = a + b\n\n    return c\n\nThat is it."
    long = Document(
        id="0", source="", tokens=tuple(range(80)), answers=((2, 80),), temperature=0.0, seed=0
    )
    prompts = text_conversations([long], lambda tokens: code, seed=3, max_tokens=150)
    assert len(prompts) == 2
    begun = prompts[1].turns[0]
    assert "def add(a, b):" in begun
    assert "return c" not in begun
    assert len({each.id for each in prompts}) == 2


@pytest.mark.slow
def test_answers_also_take_prompts_that_the_target_wrote_about_its_own_texts(
    chat_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(text_prompts, "_MIN_TOKENS", 3)
    monkeypatch.setattr(gather_answers, "_MOST_TURNS", 9)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(f'{{"id": "{i}", "prompt": "abc"}}\n' for i in range(8)))
    own = "--turns-s 60 --texts-s 60"
    sizes = f"--device cpu --rows 4 --length 60 --answer-tokens 6 --temperatures 0 {own}".split()
    where = ["--model", str(chat_folder), "--prompts", str(prompts), "--out", str(tmp_path / "a")]
    assert run(["train", "answers", *where, *sizes]) == 0
    sources = [each.source for each in read_documents(tmp_path / "a")]
    assert sources.count("file") == 8
    assert sources.count("self_written") == 9
    assert "self_texts" in sources
