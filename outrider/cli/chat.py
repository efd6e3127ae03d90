"""`outrider chat`: a conversation on the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""

import sys
from typing import Annotated

import typer

from outrider.cli.flags import DraftFlags, SamplingParamFlags, expand_flags
from outrider.cli.model_flags import ModelArgument, ModelFlags


@expand_flags
def chat(
    model_argument: ModelArgument = None,
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    sampling_flags: SamplingParamFlags,
    system: Annotated[str, typer.Option(help="System message.", show_default=False)] = "",
) -> None:
    """Talk to a model; it remembers the conversation."""
    draft = draft_flags.config()
    sampling_flags.params()  # wrong flags fail before the model is loaded

    from outrider.cli.chat_session import ChatSession

    llm = model_flags.of(model_argument).load(draft)
    params = sampling_flags.params(llm.get_default_sampling_params())
    session = ChatSession(llm.frontend, params, system=system)
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
