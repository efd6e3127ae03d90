"""One test of a rule for many files: thousands of tests would take longer than what they check."""

from collections.abc import Callable, Iterable
from pathlib import Path


def for_every_file(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes a check of one file a test of all files, which fails with those that break the rule."""
    files = list(paths)
    assert files, "a rule without files holds nothing"

    def as_test(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in files:
                try:
                    check(path)
                except AssertionError as error:
                    broken.append(f"{path}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return as_test
