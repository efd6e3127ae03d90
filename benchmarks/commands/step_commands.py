"""`python -m benchmarks decode`, `iteration` and `prefill`: one engine against its floors."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.commands.widen_command import WidenedFlags, widened_iteration
from outrider.cli.bench_flags import JsonFlag, check_json, open_model
from outrider.cli.flags import expand_flags
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch

if TYPE_CHECKING:
    from benchmarks.steps.body import Body
    from benchmarks.steps.step_args import Extras, Place, Stored, Tree

BodyFlag = Annotated[
    str,
    typer.Option(
        help="Shape of random weights: llama-8b (default), mistral-7b, mimo-7b, smollm2-135m, "
        "deepseek-v2-lite, deepseek-v3, deepseek-v4 (also -window, -sparse, -heavy, -tiny), "
        "qwen3-next, tiny, tiny-latent, tiny-recurrent."
    ),
]
LayersFlag = Annotated[
    int, typer.Option(help="Only so many layers of the body, and a small vocabulary.", min=0)
]
BreakdownFlag = Annotated[
    bool, typer.Option("--breakdown", help="Also profile each case: kernels by class, and gaps.")
]
RealFlag = Annotated[str, typer.Option("--model", help="Real weights instead: alias or folder.")]
RowsFlag = Annotated[str, typer.Option(help="Numbers of rows, a comma list.")]
PromptFlag = Annotated[int, typer.Option(help="Tokens of every prompt.")]
ContextFlag = Annotated[int, typer.Option(help="Also with rows that end this long; 0: do not.")]
StepsFlag = Annotated[int, typer.Option("--tokens", help="Steps that are timed in each case.")]
DtypeFlag = Annotated[str, typer.Option(help="Type of the weights.")]
QuantizationFlag = Annotated[
    str,
    typer.Option(
        help="Projections of random weights: none, fp8, int4, mxfp4 (of experts; else fp8)."
    ),
]
DeviceFlag = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
ExecutorFlag = Annotated[str, typer.Option(help="How steps are run; auto: the engine's choice.")]
DeterministicFlag = Annotated[
    bool,
    typer.Option(
        "--deterministic/--no-deterministic",
        help="Kernels whose sums do not depend on the batch: the engine's default.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFlags:
    """Where and how the engine decodes."""

    dtype: DtypeFlag = "bfloat16"
    quantization: QuantizationFlag = "none"
    device: DeviceFlag = "auto"
    executor: ExecutorFlag = "auto"
    deterministic: DeterministicFlag = True
    step_tokens: Annotated[
        int, typer.Option(help="Prompt tokens of one step: the largest piece.", min=1)
    ] = 8192
    pretend_prompts: Annotated[
        bool, typer.Option("--pretend-prompts", help="Do not read prompts: their KV is noise.")
    ] = False

    def place(self) -> "Place":
        from benchmarks.steps.step_args import (
            Place,
            parse_dtype,
            parse_executor,
            parse_quantization,
        )

        return Place(
            device=self.device,
            dtype=parse_dtype(self.dtype),
            executor=parse_executor(self.executor),
            is_deterministic=self.deterministic,
            step_tokens=self.step_tokens,
            reads_prompts=not self.pretend_prompts,
            quantization=parse_quantization(self.quantization),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFlags:
    """How long prompts and cases of an iteration are."""

    prompt: PromptFlag = 128
    context: ContextFlag = 0
    tokens: StepsFlag = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFlags:
    """The tree of a random head or random modules, and its acceptance; None: the default."""

    draft_steps: Annotated[int | None, typer.Option(help="Depth of a draft tree: 5.")] = None
    topk: Annotated[int | None, typer.Option(help="Children per node: 1, a chain.")] = None
    nodes: Annotated[int | None, typer.Option(help="Size of a tree: 1 + steps.")] = None
    simulate_acceptance: Annotated[
        float | None, typer.Option(help="Tokens an iteration is made to emit, on average: 3.0.")
    ] = None
    modules: Annotated[
        int,
        typer.Option(help="Random modules in the head's place: 1 repeated, or one a step.", min=0),
    ] = 0

    def tree(self) -> "Tree":
        from benchmarks.steps.step_args import Tree, check_modules

        usual = self.modules if self.modules > 1 else 5
        steps = usual if self.draft_steps is None else self.draft_steps
        tree = Tree(
            steps=steps,
            topk=1 if self.topk is None else self.topk,
            nodes=1 + steps if self.nodes is None else self.nodes,
            mean_emitted=3.0 if self.simulate_acceptance is None else self.simulate_acceptance,
        )
        check_modules(self.modules, tree)
        return tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraFlags:
    """What to measure besides the time of steps."""

    breakdown: BreakdownFlag = False
    cold_start: Annotated[
        bool,
        typer.Option("--cold-start", help="Also time the way from weights to the first tokens."),
    ] = False

    def extras(self) -> "Extras":
        from benchmarks.steps.step_args import Extras

        return Extras(has_breakdown=self.breakdown, has_cold_start=self.cold_start)


@expand_flags
def decode(
    *,
    body: BodyFlag = "",
    layers: LayersFlag = 0,
    model: RealFlag = "",
    rows: RowsFlag = "",
    prompt: PromptFlag = 128,
    context: ContextFlag = 1024,
    tokens: StepsFlag = 64,
    place_flags: PlaceFlags,
    extra_flags: ExtraFlags,
    json_file: JsonFlag = None,
) -> None:
    """Plain decoding: time per step at several numbers of rows, against the bytes it reads."""
    from benchmarks.steps.step_args import plan_work
    from outrider.bench.offline.offline_args import parse_rows

    usual = "1,64,256" if model else "1,8,32,64,128"
    work = plan_work(parse_rows(rows or usual), prompt=prompt, context=context, steps=tokens)
    place, extras = place_flags.place(), extra_flags.extras()
    check_json(json_file)
    source = _source(body, model, layers)
    import_torch()
    from benchmarks.steps.start_steps import (
        bench_decode,  # imports torch, so wrong flags fail first
    )

    bench_decode(source, place, work, extras, json_file)


@expand_flags
def iteration(
    *,
    body: BodyFlag = "",
    layers: LayersFlag = 0,
    tree_flags: TreeFlags,
    rows: RowsFlag = "1,8,32,64",
    length_flags: LengthFlags,
    place_flags: PlaceFlags,
    with_plain: Annotated[
        bool, typer.Option("--with-plain", help="Also plain steps, and steps that only verify.")
    ] = False,
    extra_flags: ExtraFlags,
    widened_flags: WidenedFlags,
    json_file: JsonFlag = None,
) -> None:
    """Speculative iterations of a random EAGLE-3 head or modules: real work, forced acceptance.

    With --widened: a real model and head in a larger body, on real questions.
    """
    place = place_flags.place()
    check_json(json_file)
    if widened_flags.widened:
        is_cut = layers > 0 or place_flags.pretend_prompts
        _check_widened(tree_flags, length_flags, extra_flags, is_cut or with_plain)
        widened_iteration(widened_flags, body or "llama-8b", place, rows, json_file)
        return
    widened_flags.check_absent()
    from benchmarks.steps.body import find_body
    from benchmarks.steps.step_args import plan_work
    from outrider.bench.offline.offline_args import parse_rows

    chosen, tree = find_body(body or "llama-8b", layers=layers), tree_flags.tree()
    work = plan_work(
        parse_rows(rows),
        prompt=length_flags.prompt,
        context=length_flags.context,
        steps=length_flags.tokens,
        emitted=tree.mean_emitted,
        nodes=tree.nodes,
    )
    import_torch()
    from benchmarks.steps.start_steps import bench_iteration  # imports torch

    bench_iteration(
        chosen,
        tree,
        place,
        work,
        extra_flags.extras(),
        num_modules=tree_flags.modules,
        with_plain=with_plain,
        json_path=json_file,
    )


def _check_widened(
    tree: TreeFlags, lengths: LengthFlags, extras: ExtraFlags, has_others: bool
) -> None:
    """Refuse with --widened what only random heads have."""
    sizes = (tree.draft_steps, tree.topk, tree.nodes, tree.simulate_acceptance)
    if any(size is not None for size in sizes):
        raise ConfigError("--widened takes its trees from --tree, and acceptance as it comes")
    if lengths != LengthFlags():
        raise ConfigError(
            "--widened answers real questions; --max-tokens bounds the answers, and --prompt, "
            "--context and --tokens have no effect: leave them out"
        )
    if has_others or tree.modules or extras != ExtraFlags():
        raise ConfigError(
            "--with-plain, --breakdown, --cold-start, --layers, --pretend-prompts and --modules "
            "do not go with --widened"
        )


def prefill(
    body: BodyFlag = "",
    layers: LayersFlag = 0,
    model: RealFlag = "",
    tokens: Annotated[int, typer.Option(help="Length of the prompt.", min=1)] = 8192,
    dtype: DtypeFlag = "bfloat16",
    device: DeviceFlag = "auto",
    executor: ExecutorFlag = "auto",
    deterministic: DeterministicFlag = True,
    step_tokens: Annotated[
        int, typer.Option(help="Prompt tokens of one step; 0: the whole prompt.", min=0)
    ] = 0,
    breakdown: BreakdownFlag = False,
    json_file: JsonFlag = None,
) -> None:
    """One long prompt: the rate of arithmetic, against one large matrix product."""
    place = PlaceFlags(
        dtype=dtype,
        device=device,
        executor=executor,
        deterministic=deterministic,
        step_tokens=step_tokens or tokens,
    ).place()
    check_json(json_file)
    source = _source(body, model, layers)
    import_torch()
    from benchmarks.steps.start_steps import bench_prefill  # imports torch

    bench_prefill(source, place, tokens=tokens, has_breakdown=breakdown, json_path=json_file)


def _source(body: str, model: str, layers: int) -> "Body | Stored":
    """A body by its name, or real weights in their folder."""
    from benchmarks.steps.step_args import Stored, choose_body

    for chosen in choose_body(body, model, layers=layers):
        return chosen
    return Stored(name=Path(model).name, folder=open_model(model))
