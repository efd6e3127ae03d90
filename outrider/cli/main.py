"""The `outrider` command: parses, runs one command, and turns errors into one line."""

import os
import sys
from typing import Annotated, cast

import typer

from outrider import __version__
from outrider.cli import bench, bench_acceptance, chat, doctor, generate, serve
from outrider.cli import bench_serve as bench_load
from outrider.cli import check_command as check
from outrider.cli import models_command as models
from outrider.cli import train_command as train
from outrider.errors import OutriderError

# Typer has kept the parser's errors in different modules; this child was always at hand.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

_INTERRUPTED = 130  # some versions of typer return it, others raise
_RESUMED = (["train", "prompts"], ["train", "answers"])  # beside pulls and batches

app = typer.Typer(
    help="Run language models on this machine.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
    pretty_exceptions_enable=False,  # a traceback here is a bug, and reports want it plain
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("pull")(models.pull)
app.command("models")(models.models)
app.command("check")(check.check)
app.command("doctor")(doctor.doctor)
bench.app.command("acceptance")(bench_acceptance.acceptance)
bench.app.command("serve")(bench_load.serve)
app.add_typer(bench.app, name="bench")
app.add_typer(train.app, name="train")


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
    """Run `outrider` with these arguments and return its exit code, as `run_app` does."""
    code = run_app(app, arguments, program="outrider")
    if code == _INTERRUPTED:
        goes_on = "; run the same command again to go on" if _goes_on(arguments) else ""
        print(f"interrupted{goes_on}", file=sys.stderr)
    return code


def _goes_on(arguments: list[str]) -> bool:
    """Whether the same command would go on where this one was interrupted."""
    is_batch = any(each.partition("=")[0] == "--input" for each in arguments)
    return is_batch or arguments[:1] == ["pull"] or arguments[:2] in _RESUMED


def run_app(commands: typer.Typer, arguments: list[str], *, program: str) -> int:
    """The exit code: 0, 1 for an error of ours, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        code = commands(arguments, prog_name=program, standalone_mode=False) or 0
        sys.stdout.flush()  # a full disk must be found out while there is somebody to tell
        return code
    except OutriderError as error:
        return _fail(str(error), 1)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else program
        message = error.format_message().rstrip(".")
        return _fail(f"{message}; see {command} --help", 2) if message else 2  # help was printed
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        where, reason = error.filename or "the output", error.strerror or error
        return _fail(f"cannot use {where}: {reason}; check its permissions and the space left", 1)


def _drop_output() -> None:
    """Leave nothing in a broken stdout that Python would fail to write once more as it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
