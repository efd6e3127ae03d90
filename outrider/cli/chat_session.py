"""Handles the lines that a user types in `outrider chat`."""

import sys

from outrider.cli.conversation import Conversation
from outrider.errors import RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.llm import Stream
from outrider.frontend.sampling_params import SamplingParams

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


class ChatSession:
    """Owns the conversation, and prints what each line of the user leads to."""

    def __init__(self, frontend: Frontend, params: SamplingParams, *, system: str) -> None:
        self._frontend = frontend
        self._params = params
        self._conversation = Conversation(
            frontend,
            system=system,
            max_tokens=params.max_tokens or frontend.inputs.bounds.max_context,
        )
        self.is_over = False

    def handle(self, line: str) -> None:
        """Run a command, or answer a message; a blank line does nothing."""
        if line == "/exit":
            self.is_over = True
        elif line == "/reset":
            self._conversation.reset()
            print("the conversation is empty again", file=sys.stderr)
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            try:
                self._answer(line)
            except RequestError as error:
                print(f"error: {error}", file=sys.stderr)

    def _answer(self, text: str) -> None:
        question = self._conversation.make_question(text)
        if question.num_dropped:
            note = f"note: the context is full; forgot the {question.num_dropped} oldest messages"
            print(note, file=sys.stderr)
        stream = Stream.open(self._frontend, question.prompt, self._params)
        try:
            for delta in stream:
                print(delta.text, end="", flush=True)
            print()
        except KeyboardInterrupt:
            stream.close()
            print("\n[stopped]", file=sys.stderr)
        if error := stream.output.error:
            print(f"error: {error}", file=sys.stderr)
            return
        self._conversation.add_answer(question, stream.output.outputs[0].text)
