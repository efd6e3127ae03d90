"""`outrider chat`: a conversation on the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""

import sys
from typing import Annotated

import typer

from outrider.cli.flags import DraftFlags, ModelFlags, SamplingParamFlags, expand_flags


@expand_flags
def chat(
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    sampling_flags: SamplingParamFlags,
    system: Annotated[str, typer.Option(help="System message.", show_default=False)] = "",
) -> None:
    """Talk to a model; it remembers the conversation."""
    params, draft = sampling_flags.params(), draft_flags.config()

    from outrider.cli.chat_session import ChatSession

    session = ChatSession(model_flags.load(draft).frontend, params, system=system)
    line = "/help"
    while not session.is_over:
        try:
            session.handle(line)
            line = _read_line()
        except EOFError:
            return
        except KeyboardInterrupt:  # no answer is running
            print(file=sys.stderr)
            line = "/help"


def _read_line() -> str:
    if not sys.stdin.isatty():
        return input().strip()
    import readline  # noqa: F401  # gives input() editing and history

    return input("> ").strip()
