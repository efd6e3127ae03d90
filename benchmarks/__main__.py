"""`python -m benchmarks`: timings of steps, iterations, prefill and the host."""

import sys

import typer

from benchmarks.commands import (
    blocks_command,
    churn_command,
    host_command,
    mixed_command,
    never_slower_command,
    ranks_command,
    roles_command,
    step_commands,
    widen_command,
)
from outrider.cli.main import run_app

app = typer.Typer(
    help="Time single steps of the engine against their floors.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("decode")(step_commands.decode)
app.command("iteration")(step_commands.iteration)
app.command("blocks")(blocks_command.blocks)
app.command("prefill")(step_commands.prefill)
app.command("mixed")(mixed_command.mixed)
app.command("churn")(churn_command.churn)
app.command("never-slower")(never_slower_command.never_slower)
app.command("host")(host_command.host)
app.command("ranks")(ranks_command.ranks)
app.command("roles")(roles_command.roles)
app.command("widen")(widen_command.widen)


def run(arguments: list[str]) -> int:
    """Run one benchmark and return its exit code."""
    return run_app(app, arguments, program="python -m benchmarks")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
