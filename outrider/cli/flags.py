"""The flags that several commands share, each declared once, and the records they become."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from outrider.config.attention_choice import DRAFT_FLAG, parse_attention
from outrider.config.draft_config import AUTO, DraftConfig, DraftDtype
from outrider.config.draft_dialects import choose_dialect
from outrider.errors import ConfigError
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.speculation_params import Speculation
from outrider.frontend.structured_params import Structured

_DEFAULTS = SamplingParams()


def _draft_flag(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Speculation")


def _sampling_flag(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Sampling")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFlags:
    """Which drafter is used, in our flags, vLLM's or SGLang's."""

    draft: Annotated[
        str,
        _draft_flag(
            "auto, none, head, ngram, suffix, mtp, a smaller model or head, like --model, "
            "or head+suffix."
        ),
    ] = "auto"
    steps: Annotated[int | None, _draft_flag("Depth of a draft tree.")] = None
    topk: Annotated[int | None, _draft_flag("Children per node; 1 makes a chain.")] = None
    nodes: Annotated[int | None, _draft_flag("Size of a tree, root included.")] = None
    adaptive: Annotated[bool, _draft_flag("Draft less, or not at all, while that is faster.")] = (
        True
    )
    check_draft: Annotated[
        bool, _draft_flag("At load, report a drafter that is useless with this model.")
    ] = True
    draft_dtype: Annotated[
        DraftDtype,
        _draft_flag("Weights of a head; auto: 8 bits on a CPU in float32. target: as --dtype."),
    ] = AUTO
    speculative_draft_attention_backend: Annotated[
        str, _draft_flag("Backend of a draft model; auto: as --attention-backend.")
    ] = AUTO
    speculative_config: Annotated[
        str | None, _draft_flag('vLLM\'s: {"method", "model", "num_speculative_tokens"}.')
    ] = None
    speculative_algorithm: Annotated[str | None, _draft_flag("SGLang's.")] = None
    speculative_draft_model_path: Annotated[str | None, _draft_flag("SGLang's.")] = None
    speculative_num_steps: Annotated[int | None, _draft_flag("SGLang's.")] = None
    speculative_eagle_topk: Annotated[int | None, _draft_flag("SGLang's.")] = None
    speculative_num_draft_tokens: Annotated[
        int | None, _draft_flag("SGLang's; counts the root.")
    ] = None

    def config(self) -> DraftConfig:
        """The configuration that the flags of any dialect describe."""
        sizes = {"steps": self.steps, "topk": self.topk, "nodes": self.nodes}
        sglang = {
            "algorithm": self.speculative_algorithm,
            "draft_model_path": self.speculative_draft_model_path,
            "num_steps": self.speculative_num_steps,
            "eagle_topk": self.speculative_eagle_topk,
            "num_draft_tokens": self.speculative_num_draft_tokens,
        }
        vllm = self.speculative_config
        own = DraftConfig(
            drafter=self.draft,
            adaptive=self.adaptive,
            check=self.check_draft,
            dtype=self.draft_dtype,
            attention=parse_attention(self.speculative_draft_attention_backend, DRAFT_FLAG),
        )
        return choose_dialect(
            replace(own, **_given(sizes)),
            vllm=None if vllm is None else _json_object("--speculative-config", vllm),
            sglang=_given(sglang),
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read(flag: str, path: Path | None) -> str | None:
    """The text of the file that a flag names; None without the flag."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} {path} cannot be read ({error}); check the file") from error


def _json_object(flag: str, text: str) -> dict[str, Any]:
    """The JSON object in the value of a flag."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} is not JSON ({error}); quote it for the shell") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParamFlags:
    """How tokens are chosen and when an answer ends."""

    max_tokens: Annotated[int, _sampling_flag("Longest answer.")] = 512
    # Values of None are the model's own (--generation-config), or else those of SamplingParams.
    temperature: Annotated[
        float | None, _sampling_flag("0 takes the likeliest token; default: the model's own.")
    ] = None
    top_p: Annotated[
        float | None, _sampling_flag("Keep the likeliest tokens of this total; likewise.")
    ] = None
    top_k: Annotated[
        int | None, _sampling_flag("Keep this many tokens, 0 keeps all; likewise.")
    ] = None
    min_p: Annotated[
        float | None, _sampling_flag("Keep tokens above this share of the best; likewise.")
    ] = None
    seed: Annotated[int | None, _sampling_flag("Repeats an answer; default: random.")] = None
    stop: Annotated[list[str] | None, _sampling_flag("End before this text; may be repeated.")] = (
        None
    )
    repetition_penalty: Annotated[
        float | None, _sampling_flag("Above 1 avoids any seen token; likewise.")
    ] = None
    presence_penalty: Annotated[float, _sampling_flag("Above 0 avoids answered tokens.")] = 0.0
    frequency_penalty: Annotated[float, _sampling_flag("The same, per occurrence.")] = 0.0
    min_tokens: Annotated[int, _sampling_flag("Shortest answer.")] = 0
    ignore_eos: Annotated[bool, _sampling_flag("Go on after the end of the answer.")] = False
    json_schema: Annotated[
        Path | None, _sampling_flag("File of a JSON schema that the answer follows.")
    ] = None
    json_object: Annotated[bool, _sampling_flag("The answer is a JSON object.")] = False
    regex: Annotated[str | None, _sampling_flag("The answer matches this, all of it.")] = None
    grammar: Annotated[
        Path | None, _sampling_flag("File of an EBNF grammar that the answer follows.")
    ] = None
    choice: Annotated[
        list[str] | None, _sampling_flag("The answer is one of these; repeat the flag.")
    ] = None
    speculative: Annotated[
        str, _sampling_flag('Limit of drafts per request: off, or such as {"steps": 2}.')
    ] = ""

    def params(self, defaults: SamplingParams = _DEFAULTS, **more: Any) -> SamplingParams:
        """The flags that were given, over the defaults of a model."""
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return replace(
            defaults,
            max_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            speculation=self._speculation(),
            structured=self._structured(),
            **_given(values),
            **more,
        )

    def _structured(self) -> Structured:
        values = {
            "json": _read("--json-schema", self.json_schema),
            "json_object": self.json_object or None,
            "regex": self.regex,
            "grammar": _read("--grammar", self.grammar),
            "choice": self.choice or None,
        }
        given = _given(values)
        if len(given) > 1:
            raise ConfigError("an answer has one form; give one of the flags that describe it")
        return given or None

    def _speculation(self) -> Speculation:
        if not self.speculative.startswith("{"):
            return self.speculative or None
        return _json_object("--speculative", self.speculative)


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer every field of a record parameter as a flag; the command gets the records."""
    hints = get_type_hints(command, include_extras=True)
    del hints["return"]
    records = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    flat = [
        parameter
        for name, own in inspect.signature(command).parameters.items()
        for parameter in (_fields_of(records[name]) if name in records else [own])
    ]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        arguments = {
            name: record(**{key: values.pop(key) for key in get_type_hints(record)})
            for name, record in records.items()
        }
        command(**arguments, **values)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _fields_of(record: type) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(record).parameters.values()
    ]
