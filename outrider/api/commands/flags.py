"""The flags that several commands share, each declared once, and what they turn into."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from outrider.api.params import SamplingParams
from outrider.store.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.api.llm import LLM


def _model_flag(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Model")


def _sampling_flag(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Sampling")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """Which model runs, and where."""

    model: Annotated[str, _model_flag("Alias, hub id, GGUF file or folder.")] = DEFAULT_ALIAS
    draft: Annotated[str, _model_flag("Drafter: auto or none.")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        _model_flag("Type of the weights in memory."),
    ] = "auto"
    device: Annotated[str, _model_flag("auto, cpu, cuda, cuda:1, ...")] = "auto"
    max_context: Annotated[
        int | None, _model_flag("Tokens of prompt and answer; default: the model's own.")
    ] = None

    def load(self) -> "LLM":
        from outrider.api.llm import LLM

        return LLM(
            self.model,
            draft=self.draft,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_context,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen and when an answer ends."""

    max_tokens: Annotated[int, _sampling_flag("Longest answer.")] = 512
    # Low enough that small models stay coherent without a filter, which would cost time per token.
    temperature: Annotated[float, _sampling_flag("0 takes the likeliest token.")] = 0.2
    top_p: Annotated[float, _sampling_flag("Keep the likeliest tokens of this total.")] = 1.0
    top_k: Annotated[int, _sampling_flag("Keep this many tokens; 0 keeps all.")] = 0
    min_p: Annotated[float, _sampling_flag("Keep tokens above this share of the best.")] = 0.0
    seed: Annotated[int | None, _sampling_flag("Repeats an answer; default: random.")] = None
    stop: Annotated[list[str] | None, _sampling_flag("End before this text; may be repeated.")] = (
        None
    )
    repetition_penalty: Annotated[float, _sampling_flag("Above 1 avoids any seen token.")] = 1.0
    presence_penalty: Annotated[float, _sampling_flag("Above 0 avoids answered tokens.")] = 0.0
    frequency_penalty: Annotated[float, _sampling_flag("The same, per occurrence.")] = 0.0
    min_tokens: Annotated[int, _sampling_flag("Shortest answer.")] = 0
    ignore_eos: Annotated[bool, _sampling_flag("Go on after the end of the answer.")] = False

    def params(self, **more: Any) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            **more,
        )


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer every field of a record parameter as a flag, and call with the records."""
    hints = get_type_hints(command, include_extras=True)
    del hints["return"]
    records = {name: hint for name, hint in hints.items() if hint in (ModelFlags, SamplingFlags)}
    flat = [
        parameter
        for name, own in inspect.signature(command).parameters.items()
        for parameter in (_fields_of(records[name]) if name in records else [own])
    ]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        made = {
            name: record(**{key: values.pop(key) for key in get_type_hints(record)})
            for name, record in records.items()
        }
        command(**made, **values)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _fields_of(record: type) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(record).parameters.values()
    ]
