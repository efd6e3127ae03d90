"""Log-probabilities in OpenAI's two formats: of chats and of completions."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from outrider.frontend.output_json import finite
from outrider.frontend.outputs import Logprob
from outrider.frontend.request_state import RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.step_result import TokenLogprobs


class TopLogprob(BaseModel):
    """One token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token that was chosen, and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """For a chat: one entry per token."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    """For a completion: four lists with an entry per token; null for the first of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, more: "CompletionLogprobs") -> "CompletionLogprobs":
        return CompletionLogprobs(
            tokens=self.tokens + more.tokens,
            token_logprobs=self.token_logprobs + more.token_logprobs,
            top_logprobs=self.top_logprobs + more.top_logprobs,
            text_offset=self.text_offset + more.text_offset,
        )


class PromptLogprob(BaseModel):
    """vLLM's record of a token of the prompt, or of one that could have been there."""

    logprob: float
    rank: int
    decoded_token: str


PromptReport = list[dict[str, PromptLogprob] | None]  # by token id; null for the first token


def prompt_report(request: RequestState) -> PromptReport:
    """The log-probabilities of a prompt in vLLM's format."""
    return [None if at is None else _by_token(at) for at in request.prompt_logprobs]


def _by_token(position: Mapping[int, Logprob]) -> dict[str, PromptLogprob]:
    return {
        str(token): PromptLogprob(
            logprob=finite(at.logprob), rank=at.rank, decoded_token=at.decoded_token
        )
        for token, at in position.items()
    }


class LogprobWriter:
    """Writes log-probabilities; of a completion, it knows the text offset of the next token."""

    def __init__(self, tokenizer: Tokenizer | NoTokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self.has_begun = False  # a completion

    def chat(self, tokens: Sequence[int], reported: Iterable[TokenLogprobs]) -> ChatLogprobs:
        content = [
            TokenLogprob(
                token=self._tokenizer.token_text(token),
                logprob=finite(at.chosen),
                bytes=list(self._tokenizer.token_bytes(token)),
                top_logprobs=[self._top(*entry) for entry in at.top],
            )
            for token, at in zip(tokens, reported, strict=True)
        ]
        return ChatLogprobs(content=content, refusal=None)

    def completion(
        self, tokens: Sequence[int], reported: Sequence[TokenLogprobs]
    ) -> CompletionLogprobs:
        self.has_begun = True
        texts = [self._tokenizer.token_text(token) for token in tokens]
        return CompletionLogprobs(
            tokens=texts,
            token_logprobs=[finite(at.chosen) for at in reported],
            top_logprobs=[
                {self._tokenizer.token_text(token): finite(value) for token, value in at.top}
                for at in reported
            ],
            text_offset=[self._advance(text) for text in texts],
        )

    def prompt(
        self, tokens: Sequence[int], reported: Sequence[TokenLogprobs]
    ) -> CompletionLogprobs:
        """The log-probabilities of an echoed prompt; its first token has none."""
        first = self._tokenizer.token_text(tokens[0])
        opening = CompletionLogprobs(
            tokens=[first],
            token_logprobs=[None],
            top_logprobs=[None],
            text_offset=[self._advance(first)],
        )
        return opening.followed_by(self.completion(tokens[1:], reported))

    def _top(self, token: int, logprob: float) -> TopLogprob:
        return TopLogprob(
            token=self._tokenizer.token_text(token),
            logprob=finite(logprob),
            bytes=list(self._tokenizer.token_bytes(token)),
        )

    def _advance(self, text: str) -> int:
        offset = self._offset
        self._offset += len(text)
        return offset
