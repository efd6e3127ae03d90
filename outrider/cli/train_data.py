"""`outrider train prompts` and `train answers`: make the data that heads are trained on."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.flags import expand_flags
from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.train.dialogue import AnswerSampling
    from outrider.train.gather_answers import AnswerGenerator, AnswerPart


PROMPTS_HELP = "JSONL of prompts or turns; may be repeated."


def answer_flag(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Answers", **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorFlags:
    """The engine that writes prompts or answers."""

    model: Annotated[str, typer.Option(help="The target: alias, hub id, GGUF file or folder.")] = (
        DEFAULT_ALIAS
    )
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto"
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0
    generate_s: Annotated[
        float, answer_flag("Seconds after which no more are generated; 0: all.")
    ] = 0.0
    rows: Annotated[int, answer_flag("Requests that the engine runs at a time.", min=1)] = 64
    gpu_memory_utilization: Annotated[
        float, answer_flag("Share of the GPU's memory that answering may take.", min=0.05, max=1.0)
    ] = 0.9

    @property
    def limit_s(self) -> float:
        return self.generate_s or math.inf

    def generator(self) -> "AnswerGenerator":
        from outrider.train.gather_answers import AnswerGenerator

        return AnswerGenerator(
            model=self.model,
            device=self.device,
            rows=self.rows,
            memory_share=self.gpu_memory_utilization,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFlags(GeneratorFlags):
    """How prompts are answered."""

    temperatures: Annotated[
        str, answer_flag("Each prompt is answered once at each; a comma list.")
    ] = "0,0.8"
    answer_tokens: Annotated[int, answer_flag("Longest answer.", min=2)] = 512

    def sampling(self, *, max_context: int) -> "AnswerSampling":
        temperatures = _temperatures(self.temperatures)
        from outrider.train.dialogue import AnswerSampling

        return AnswerSampling(
            temperatures=temperatures,
            max_tokens=self.answer_tokens,
            max_context=max_context,
            seed=self.seed,
            limit_s=self.limit_s,
        )


@expand_flags
def prompts(
    out: Annotated[Path, typer.Option(help="JSONL file to add to.")],
    *,
    flags: GeneratorFlags,
    count: Annotated[int, typer.Option(help="Prompts that are wanted in it.", min=1)] = 10000,
    temperature: Annotated[float, typer.Option(help="Of the turns.", min=0.0, max=2.0)] = 1.0,
    turn_tokens: Annotated[int, typer.Option(help="Longest turn.", min=2)] = 256,
) -> None:
    """Let the target write user turns itself, from its own chat template."""
    from outrider.frontend.batch_bar import batch_bar
    from outrider.train.user_turns import TurnSampling, turn_prefix, write_turns

    sampling = TurnSampling(
        count=count,
        temperature=temperature,
        max_tokens=turn_tokens,
        seed=flags.seed,
        limit_s=flags.limit_s,
    )
    frontend = flags.generator().start(turn_tokens + _TEMPLATE_ROOM).frontend
    turn_prefix(frontend)  # refuses an unsuitable model before a file is made
    with batch_bar(count) as on_turn:
        num_turns = write_turns(
            frontend, sampling, out, max_in_flight=2 * flags.rows, on_turn=on_turn
        )
    print(f"{out}: {num_turns} prompts")


_TEMPLATE_ROOM = 256  # tokens that a template may add before the user's turn


@expand_flags
def answers(
    out: Annotated[Path, typer.Option(help="JSONL file to add to.")],
    prompts: Annotated[list[Path], typer.Option(help=PROMPTS_HELP)],
    *,
    flags: AnswerFlags,
    length: Annotated[int, typer.Option(help="Tokens of the longest document.", min=8)] = 2048,
    part: Annotated[
        str, typer.Option(help="2/3: the second third, for several processes.")
    ] = "1/1",
    turns_s: Annotated[
        float, answer_flag("Seconds in which the target first writes more user turns.", min=0)
    ] = 0.0,
    texts_s: Annotated[
        float, answer_flag("Seconds in which it then summarises its own answers.", min=0)
    ] = 0.0,
) -> None:
    """Answer prompts with the target and write a file for `train eagle3 --answers`."""
    from outrider.train.gather_answers import AnswerSource, OwnPrompts, gather_answers

    source = AnswerSource(
        prompts=tuple(prompts),
        answers=(),
        sampling=flags.sampling(max_context=length),
        part=_part(part),
        own=OwnPrompts(turns_s=turns_s, texts_s=texts_s),
    )
    documents = gather_answers(source, flags.generator(), out, is_complete=False)
    print(f"{out}: {len(documents)} documents")


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        temperatures = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--temperatures {text} is no list of numbers; such as 0,0.8") from error
    if any(not 0 <= each <= 2 for each in temperatures) or len(set(temperatures)) < len(
        temperatures
    ):
        raise ConfigError(f"--temperatures {text}: give different numbers between 0 and 2")
    return temperatures


def _part(text: str) -> "AnswerPart":
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ConfigError(f"--part {text} is no share; such as 2/3, the second of three")
    from outrider.train.gather_answers import AnswerPart

    return AnswerPart(number=int(number), of=int(of))
