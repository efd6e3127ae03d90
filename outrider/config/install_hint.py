"""How missing packages are installed: from the clone that runs, or by name."""

from pathlib import Path

_ROOT = Path(__file__).parents[2]  # of a clone; site-packages of an installed wheel


def install_hint(extra: str) -> str:
    """The command that installs an extra of this package."""
    if (_ROOT / "pyproject.toml").is_file():
        return f"pip install -e '{_ROOT}[{extra}]'"
    return f"pip install 'outrider[{extra}]'"
