"""The `outrider` command: parses, runs one command, and turns errors into one line."""

import os
import sys
from typing import Annotated, cast

import typer

from outrider import __version__
from outrider.api.commands import bench, chat, check, doctor, generate, models
from outrider.errors import OutriderError

# Typer has kept the parser's base error in different modules; its children always had this one.
_ParserError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    help="Run language models on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback here is a bug, and reports want it plain
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("pull")(models.pull)
app.command("models")(models.models)
app.command("check")(check.check)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code: 0, 1 for an error of ours, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        return app(arguments, prog_name="outrider", standalone_mode=False) or 0
    except OutriderError as error:
        return _fail(str(error), 1)
    except _ParserError as error:
        message = error.format_message().rstrip(".")
        return _fail(f"{message}; see outrider --help", 2) if message else 2  # help was printed
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
