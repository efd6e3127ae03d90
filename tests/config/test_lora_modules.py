"""The spellings of `--lora-modules`."""

import pytest

from outrider.config.lora_checks import parse_module
from outrider.errors import ConfigError


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("sql=/a/b", ("sql", "/a/b")),
        ("/a/b", ("/a/b", "/a/b")),
        ('{"name": "sql", "path": "/a/b", "base_model_name": "m"}', ("sql", "/a/b")),
        ('{"lora_name": "sql", "lora_path": "/a=b", "pinned": true}', ("sql", "/a=b")),
    ],
)
def test_a_module_has_the_spellings_of_vllm_and_sglang(text, module):
    assert parse_module(text) == module


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=/a", "needs NAME=PATH"),
        ('{"name": "sql"}', 'or {"name": NAME, "path": PATH}, got'),
        ('{"name": "sql", "path": ""}', "needs NAME=PATH"),
        ('{"name": 1, "path": "/a"}', 'or {"name": NAME'),
        ('{"name": "sql"', "JSON that cannot be read"),
    ],
)
def test_others_are_refused_with_the_fix(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_module(text)
