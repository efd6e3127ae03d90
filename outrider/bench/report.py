"""How every benchmark reports: lines about the setting, tables, notes, and a JSON file.

A benchmark brings its records, its columns and its lines; the layout is here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from outrider.hub.atomic_json import write_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WIDTH = 100  # characters of a line, also where the output is no terminal
LABEL_WIDTH = 11  # of the label at the start of a setting line

SettingLine = tuple[str, str]  # label and text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; numbers are aligned right."""

    title: str
    justify: Literal["left", "right"] = "right"
    no_wrap: bool = False
    min_width: int | None = None
    max_width: int | None = None


def numbers(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(title=title) for title in titles)


def texts(*titles: str) -> tuple[Column, ...]:
    """Columns of names, each on one line."""
    return tuple(Column(title=title, justify="left", no_wrap=True) for title in titles)


def wrapped(title: str) -> tuple[Column, ...]:
    """A column of text that may take several lines."""
    return (Column(title=title, justify="left"),)


@dataclass(frozen=True, slots=True)
class Dim:
    """The cells of a row that is shown less bright than the others."""

    cells: Sequence[str]


def build_table(
    columns: Iterable[Column], rows: Iterable[Sequence[str] | Dim], *, is_tight: bool = False
) -> Table:
    """A table without lines; a tight one has one space between its columns."""
    table = Table(box=None, header_style="bold", collapse_padding=is_tight)
    for column in columns:
        table.add_column(
            column.title,
            justify=column.justify,
            no_wrap=column.no_wrap,
            min_width=column.min_width,
            max_width=column.max_width,
        )
    for row in rows:
        if isinstance(row, Dim):
            table.add_row(*row.cells, style="dim")
        else:
            table.add_row(*row)
    return table


class ReportPrinter:
    """Prints one report on stdout, from top to bottom."""

    def __init__(self) -> None:
        self._console = Console(width=WIDTH, highlight=False)

    def setting(self, lines: Iterable[SettingLine], *, label_width: int = LABEL_WIDTH) -> None:
        """Print the setting of the run: a label and a text per line."""
        for label, text in lines:
            self.line(f"{label:<{label_width}}{text}")

    def line(self, text: str = "") -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """The name of the part that follows, after an empty line."""
        self._console.print(f"\n{text}", style="bold", markup=False)

    def table(self, table: Table) -> None:
        self._console.print(table)

    def warning(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True, style="red")

    def note(self, text: str) -> None:
        """Print what the columns mean."""
        self._console.print(text, style="dim")


def describe_record(record: "DataclassInstance", *properties: str) -> dict[str, Any]:
    """The fields of a record as plain values that JSON can hold, and some of its properties."""
    return asdict(record) | {name: getattr(record, name) for name in properties}


def write_report(json_path: Path | None, content: dict[str, Any]) -> None:
    """Write the JSON file where one is wanted."""
    if json_path is not None:
        write_json(json_path, content)
