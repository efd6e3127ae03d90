"""`/tokenize` and `/detokenize`, as vLLM has them."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from outrider.errors import RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.prompts import TextPrompt
from outrider.server.protocol.chat_protocol import ChatMessage
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.protocol.tool_choice import template_variables
from outrider.server.protocol.tools import Tools, check_tools


class TokenizeRequest(RequestBody):
    """A text, or a conversation for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    def text(self, frontend: Frontend) -> TextPrompt:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages")
        if self.prompt is not None:
            return TextPrompt(self.prompt, add_special=self.add_special_tokens is not False)
        check_tools(self.tools or (), None)
        opens_answer = self.add_generation_prompt is not False
        variables = template_variables(
            self.tools or (), self.chat_template_kwargs, opens_answer=opens_answer
        )
        return frontend.inputs.render([each.turn for each in self.messages or ()], **variables)


class TokenizeAnswer(BaseModel):
    """The ids, and their texts if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestBody):
    """Ids of this model's vocabulary."""

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]


class DetokenizeAnswer(BaseModel):
    """The text of the ids; the field has vLLM's name."""

    prompt: str
