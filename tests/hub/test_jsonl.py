import json

from outrider.hub.jsonl import numbered_lines


def test_separators_inside_a_string_do_not_end_a_line(tmp_path):
    texts = ["one\u2028two", "three\x85four", "five\u2029six"]
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps(text, ensure_ascii=False) for text in texts]
    path.write_text(f"{lines[0]}\n\n{lines[1]}\n{lines[2]}", encoding="utf-8")
    found = list(numbered_lines(path))
    assert [json.loads(line) for _, line in found] == texts
    assert [number for number, _ in found] == [1, 3, 4]
