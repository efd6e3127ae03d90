"""The `outrider` command: parses arguments, runs one command, prints errors as one line."""

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from outrider import __version__
from outrider.cli import (
    bench,
    bench_acceptance,
    bench_accuracy,
    bench_adaptive,
    bench_serve,
    chat,
    check_command,
    doctor,
    generate,
    models_command,
    serve,
    train_blocks,
    train_command,
)
from outrider.cli.config_file import with_config_file
from outrider.cli.grouped_help import GroupedHelp
from outrider.cli.repeated_values import repeat_flags
from outrider.cli.take_peer_flags import take_peer_flags
from outrider.errors import OutriderError

# Versions of typer have the parser's errors in different modules; all have this subclass.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

_INTERRUPTED = 130  # some versions of typer return it, others raise
_RESUMED = (["train", "prompts"], ["train", "answers"])  # as well as pulls and batches

app = typer.Typer(
    help="Run language models on this machine.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
    rich_markup_mode=None,  # its tables cut the names of flags at 80 columns
    pretty_exceptions_enable=False,  # a traceback is a bug of ours; bug reports need it unformatted
)
for _command in (
    generate.generate,
    chat.chat,
    serve.serve,
    models_command.pull,
    models_command.models,
    check_command.check,
    doctor.doctor,
):
    app.command(_command.__name__, cls=GroupedHelp)(_command)
bench.app.command("acceptance", cls=GroupedHelp)(bench_acceptance.acceptance)
bench.app.command("accuracy", cls=GroupedHelp)(bench_accuracy.accuracy)
bench.app.command("adaptive", cls=GroupedHelp)(bench_adaptive.adaptive)
bench.app.command("serve", cls=GroupedHelp)(bench_serve.bench_serve)
app.add_typer(bench.app, name="bench")
train_command.app.command("dflash", cls=GroupedHelp)(train_blocks.dflash)
train_command.app.command("dspark", cls=GroupedHelp)(train_blocks.dspark)
app.add_typer(train_command.app, name="train")


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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Files of a model may hold half a surrogate pair, which a report on them quotes.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run `outrider` with these arguments; returns the exit code of `run_app`."""
    code = run_app(app, arguments, program="outrider", expand=_expand)
    if code == _INTERRUPTED:
        advice = "; run the same command again to go on" if _is_resumable(arguments) else ""
        print(f"interrupted{advice}", file=sys.stderr)
    return code


def _is_resumable(arguments: list[str]) -> bool:
    """Whether the same command, run again, continues where it was interrupted."""
    is_batch = any(each.partition("=")[0] == "--input" for each in arguments)
    return is_batch or arguments[:1] == ["pull"] or arguments[:2] in _RESUMED


def _expand(arguments: list[str]) -> list[str]:
    """The arguments, with the flags of a --config file, and flags of peers as ours."""
    group = cast(Any, typer.main.get_command(app))
    command = group.commands.get(arguments[0]) if arguments else None
    if command is None:
        return arguments
    flags = {
        name: (each.opts[0], (each.secondary_opts or [""])[0])
        for each in command.params
        for name in each.opts
    }
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return take_peer_flags(repeat_flags(with_config_file(arguments, flags)), known)


def _as_given(arguments: list[str]) -> list[str]:
    return arguments


def run_app(
    commands: typer.Typer,
    arguments: list[str],
    *,
    program: str,
    expand: Callable[[list[str]], list[str]] = _as_given,
) -> int:
    """The exit code: 0, 1 for an OutriderError, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        code = commands(expand(arguments), prog_name=program, standalone_mode=False) or 0
        sys.stdout.flush()  # a full disk must be found while an error can still be printed
        return code
    except OutriderError as error:
        return _fail(str(error), 1)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else program
        message = error.format_message().rstrip(".")
        return _fail(f"{message}; see {command} --help", 2) if message else 2  # help was printed
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        where, reason = error.filename or "the output", error.strerror or error
        return _fail(f"cannot use {where}: {reason}; check its permissions and the space left", 1)


def _drop_output() -> None:
    """Drop what a broken stdout still holds: Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
