"""The help of a command: flags by group, never cut, at any width of the terminal."""

from typing import Any

import typer.core


class GroupedHelp(typer.core.TyperCommand):
    """Writes flags under the title of their panel. A long name gets a line of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(_title(parameter), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _title(parameter: Any) -> str:
    is_argument = isinstance(parameter, typer.core.TyperArgument)
    return parameter.rich_help_panel or ("Arguments" if is_argument else "Options")
