"""`/v1/embeddings`: the request and the answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.server.protocol.completions_protocol import TokenIds, TokenLists
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.protocol.sampling_fields import RequestName

MAX_INPUTS = 2048  # OpenAI's

Inputs = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]


class EmbeddingsRequest(RequestBody):
    """OpenAI's fields, and two of vLLM's."""

    model: str | None = None
    input: str | TokenIds | Inputs | TokenLists
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None  # without effect
    add_special_tokens: bool | None = None
    request_id: RequestName | None = None

    @property
    def prompts(self) -> list[TextPrompt | TokenPrompt]:
        """Each text, whether one or several were given, as text or as ids."""
        given = self.input
        is_one = isinstance(given, str) or isinstance(given[0], int)
        return [self._prompt(each) for each in ([given] if is_one else given)]

    def _prompt(self, prompt: object) -> TextPrompt | TokenPrompt:
        if isinstance(prompt, str):
            return TextPrompt(prompt, add_special=self.add_special_tokens is not False)
        assert isinstance(prompt, list), "the schema allows texts and lists of ids"
        return TokenPrompt(tuple(prompt))


class EmbeddingItem(BaseModel):
    """The embedding of one text: numbers, or base64 of float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The embeddings in the order of the texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[EmbeddingItem]
    usage: EmbeddingsUsage
