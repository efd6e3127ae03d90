"""`outrider bench decode`, `iteration` and `prefill`: one engine against its floors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.api.commands.bench_flags import JsonFlag, checked_targets, open_model
from outrider.api.commands.bench_widen import (
    DraftFlag,
    LengthFlag,
    PromptsFlag,
    TreeFlag,
    WidenedFlag,
    WidenedFlags,
    widened_iteration,
)
from outrider.api.interrupts import import_torch

if TYPE_CHECKING:
    from outrider.bench.gpu.asked import Place, Stored
    from outrider.bench.gpu.body import Body

BodyFlag = Annotated[
    str,
    typer.Option(
        help="Shape of random weights: llama-8b (default), mimo-7b, smollm2-135m, "
        "deepseek-v2-lite, deepseek-v3, deepseek-v4 (also -window, -sparse, -heavy, -tiny), "
        "qwen3-next, tiny, tiny-latent, tiny-recurrent."
    ),
]
LayersFlag = Annotated[
    int, typer.Option(help="Only so many layers of the body, and a small vocabulary.", min=0)
]
PretendFlag = Annotated[
    bool,
    typer.Option("--pretend-prompts", help="Do not read prompts: their KV is noise."),
]
RealFlag = Annotated[str, typer.Option("--model", help="Real weights instead: alias or folder.")]
RowsFlag = Annotated[str, typer.Option(help="Numbers of rows, a comma list.")]
PromptFlag = Annotated[int, typer.Option(help="Tokens of every prompt.")]
ContextFlag = Annotated[int, typer.Option(help="Also with rows that end this long; 0: do not.")]
StepsFlag = Annotated[int, typer.Option("--tokens", help="Steps that are timed in each case.")]
DtypeFlag = Annotated[str, typer.Option(help="Type of the weights.")]
DeviceFlag = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
ExecutorFlag = Annotated[str, typer.Option(help="How steps are run; auto: the engine's choice.")]
DeterministicFlag = Annotated[
    bool, typer.Option("--deterministic", help="Kernels whose sums do not depend on the batch.")
]
StepTokensFlag = Annotated[
    int, typer.Option(help="Prompt tokens of one step: the largest piece.", min=1)
]
BreakdownFlag = Annotated[
    bool, typer.Option("--breakdown", help="Also profile each case: kernels by class, and gaps.")
]
ColdFlag = Annotated[
    bool, typer.Option("--cold-start", help="Also time the way from weights to the first tokens.")
]

_LENGTHS = {"prompt": 128, "context": 0, "steps": 64}  # of an iteration, unless told otherwise
ModulesFlag = Annotated[
    int, typer.Option(help="Random modules in the head's place: 1 repeated, or one a step.", min=0)
]


def decode(
    body: BodyFlag = "",
    layers: LayersFlag = 0,
    model: RealFlag = "",
    rows: RowsFlag = "",
    prompt: PromptFlag = 128,
    context: ContextFlag = 1024,
    tokens: StepsFlag = 64,
    dtype: DtypeFlag = "bfloat16",
    device: DeviceFlag = "auto",
    executor: ExecutorFlag = "auto",
    deterministic: DeterministicFlag = False,
    step_tokens: StepTokensFlag = 8192,
    pretend_prompts: PretendFlag = False,
    breakdown: BreakdownFlag = False,
    cold_start: ColdFlag = False,
    json_file: JsonFlag = None,
) -> None:
    """Plain decoding: time per step at several numbers of rows, against the bytes it reads."""
    from outrider.bench.gpu.asked import Extras, parse_rows, plan_work

    usual = "1,64,256" if model else "1,8,32,64,128"
    work = plan_work(parse_rows(rows or usual), prompt=prompt, context=context, steps=tokens)
    place = _place(dtype, device, executor, deterministic, step_tokens, not pretend_prompts)
    targets, source = checked_targets(json_file), _source(body, model, layers)
    import_torch()
    from outrider.bench.gpu.start import bench_decode  # torch comes with it: bad flags fail before

    extras = Extras(has_breakdown=breakdown, has_cold_start=cold_start)
    bench_decode(source, place, work, extras, targets)


def iteration(
    body: BodyFlag = "",
    layers: LayersFlag = 0,
    draft_steps: Annotated[int | None, typer.Option(help="Depth of a draft tree: 5.")] = None,
    topk: Annotated[int | None, typer.Option(help="Children per node: 1, a chain.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Size of a tree: 1 + steps.")] = None,
    simulate_acceptance: Annotated[
        float | None, typer.Option(help="Tokens an iteration is made to emit, on average: 3.0.")
    ] = None,
    modules: ModulesFlag = 0,
    rows: RowsFlag = "1,8,32,64",
    prompt: PromptFlag = _LENGTHS["prompt"],
    context: ContextFlag = _LENGTHS["context"],
    tokens: StepsFlag = _LENGTHS["steps"],
    dtype: DtypeFlag = "bfloat16",
    device: DeviceFlag = "auto",
    executor: ExecutorFlag = "auto",
    deterministic: DeterministicFlag = False,
    step_tokens: StepTokensFlag = 8192,
    pretend_prompts: PretendFlag = False,
    with_plain: Annotated[
        bool, typer.Option("--with-plain", help="Also plain steps, and steps that only verify.")
    ] = False,
    breakdown: BreakdownFlag = False,
    cold_start: ColdFlag = False,
    widened: WidenedFlag = "",
    draft: DraftFlag = None,
    prompts: PromptsFlag = None,
    tree: TreeFlag = [],  # noqa: B006  # typer reads it and never writes
    max_tokens: LengthFlag = None,
    json_file: JsonFlag = None,
) -> None:
    """Speculative iterations of a random EAGLE-3 head or modules: real work, acceptance given.

    With --widened of a real model and head in a larger body, on real questions.
    """
    place = _place(dtype, device, executor, deterministic, step_tokens, not pretend_prompts)
    sizes = (draft_steps, topk, nodes, simulate_acceptance)
    real = WidenedFlags(
        model=widened, draft=draft, prompts=prompts, trees=tuple(tree), max_tokens=max_tokens
    )
    lengths = {"prompt": prompt, "context": context, "steps": tokens}
    if widened:
        others = (with_plain, breakdown, cold_start, layers > 0, pretend_prompts, modules > 0)
        _check_absent(sizes, lengths, any(others))
        widened_iteration(real, body or "llama-8b", place, rows, checked_targets(json_file))
        return
    real.check_absent()
    extras = (with_plain, breakdown, cold_start)
    work = (rows, lengths, modules)
    _random_iteration((body, layers), sizes, place, work, extras, checked_targets(json_file))


def _random_iteration(
    body: tuple[str, int],  # its name, and how many of its layers
    sizes: tuple[int | None, int | None, int | None, float | None],
    place: "Place",
    asked: tuple[str, dict[str, int], int],  # rows, lengths, modules
    extras: tuple[bool, bool, bool],
    targets: tuple[Path, ...],
) -> None:
    from outrider.bench.gpu.asked import Extras, Tree, check_modules, parse_rows, plan_work
    from outrider.bench.gpu.body import find_body

    (name, layers), (steps, topk, nodes, emitted) = body, sizes
    chosen = find_body(name or "llama-8b", layers=layers)
    rows, lengths, modules = asked
    usual = modules if modules > 1 else 5
    tree = Tree(
        steps=usual if steps is None else steps,
        topk=1 if topk is None else topk,
        nodes=1 + (usual if steps is None else steps) if nodes is None else nodes,
        mean_emitted=3.0 if emitted is None else emitted,
    )
    check_modules(modules, tree)
    work = plan_work(parse_rows(rows), **lengths, emitted=tree.mean_emitted, nodes=tree.nodes)
    import_torch()
    from outrider.bench.gpu.start import bench_iteration  # torch comes with it

    with_plain, has_breakdown, has_cold_start = extras
    wanted = Extras(has_breakdown=has_breakdown, has_cold_start=has_cold_start)
    bench_iteration(
        chosen,
        tree,
        place,
        work,
        wanted,
        num_modules=modules,
        with_plain=with_plain,
        targets=targets,
    )


def _check_absent(sizes: Sequence[float | None], lengths: dict[str, int], has_extras: bool) -> None:
    """Refuse with --widened what only random heads have."""
    from outrider.errors import ConfigError

    if any(size is not None for size in sizes):
        raise ConfigError("--widened takes its trees from --tree, and acceptance as it comes")
    if lengths != _LENGTHS:
        raise ConfigError(
            "--widened asks real questions; --max-tokens bounds the answers, and --prompt, "
            "--context and --tokens have no effect: leave them out"
        )
    if has_extras:
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
    deterministic: DeterministicFlag = False,
    step_tokens: Annotated[
        int, typer.Option(help="Prompt tokens of one step; 0: the whole prompt.", min=0)
    ] = 0,
    json_file: JsonFlag = None,
) -> None:
    """One long prompt: the rate of arithmetic, against one large matrix product."""
    place = _place(dtype, device, executor, deterministic, step_tokens or tokens)
    targets, source = checked_targets(json_file), _source(body, model, layers)
    import_torch()
    from outrider.bench.gpu.start import bench_prefill  # torch comes with it

    bench_prefill(source, place, tokens=tokens, targets=targets)


def _place(
    dtype: str,
    device: str,
    executor: str,
    is_deterministic: bool,
    step_tokens: int,
    reads_prompts: bool = True,
) -> "Place":
    from outrider.bench.gpu.asked import Place, parse_dtype, parse_executor

    return Place(
        device=device,
        dtype=parse_dtype(dtype),
        executor=parse_executor(executor),
        is_deterministic=is_deterministic,
        step_tokens=step_tokens,
        reads_prompts=reads_prompts,
    )


def _source(body: str, model: str, layers: int) -> "Body | Stored":
    """A body by its name, or real weights in their folder."""
    from outrider.bench.gpu.asked import Stored, choose_body

    for chosen in choose_body(body, model, layers=layers):
        return chosen
    return Stored(name=Path(model).name, folder=open_model(model))
