"""A rule for every file names each file that breaks it, and why."""

from pathlib import Path

import pytest
from support.every_file import for_every_file


@for_every_file([Path("a.py"), Path("b.py"), Path("c.py")])
def is_named_b(path):
    assert path.stem == "b", "another name"


def test_all_files_that_break_a_rule_are_named():
    with pytest.raises(AssertionError) as failure:
        is_named_b()
    assert all(name in str(failure.value) for name in ("a.py", "c.py", "another name"))
    assert "b.py" not in str(failure.value)
