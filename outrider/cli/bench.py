"""`outrider bench`: the benchmarks, imported when one runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench_churn import ChurnFlags, offline_churn
from outrider.cli.bench_flags import (
    DraftsFlag,
    DtypeFlag,
    JsonFlag,
    ModelFlag,
    ThreadsFlag,
    check_json,
    find_drafts,
    open_model,
)
from outrider.cli.flags import expand_flags
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.bench.offline.offline_args import OfflineArgs

app = typer.Typer(
    help="Measure speed and quality on this machine.", no_args_is_help=True, rich_markup_mode=None
)

_LAB = ("decode", "iteration", "prefill", "host", "widen")  # benchmarks that are not in the package
_ANY_FLAGS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}


def _point_to_lab(context: typer.Context) -> None:
    name = context.info_name
    raise ConfigError(
        f"`outrider bench {name}` is not part of the package; in a checkout of the repository, "
        f"run python -m benchmarks {name}"
    )


for _name in _LAB:
    app.command(_name, hidden=True, context_settings=_ANY_FLAGS)(_point_to_lab)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags of batches that begin and end together; None: the default."""

    batch: Annotated[str | None, typer.Option(help="Batch sizes, a comma list: 1,8,32.")] = None
    prompt_tokens: Annotated[int | None, typer.Option(help="Length of every prompt: 64.")] = None
    busy_neighbour: Annotated[
        bool, typer.Option("--busy-neighbour", help="Run beside a process that wants a core.")
    ] = False
    quick: Annotated[bool, typer.Option("--quick", help="One run of each instead of 3.")] = False

    def check_absent(self) -> None:
        """Refuse them where requests come and go."""
        if self.batch or self.prompt_tokens or self.busy_neighbour or self.quick:
            raise ConfigError(
                "--batch, --prompt-tokens, --busy-neighbour and --quick do not go with --churn; "
                "use --rows and --requests"
            )

    def read(self, *, dtypes: Sequence[str], max_tokens: int, peers: str) -> "OfflineArgs":
        """The checked flags."""
        from outrider.bench.offline.offline_args import (
            Lengths,
            OfflineArgs,
            parse_batches,
            parse_dtypes,
        )
        from outrider.bench.peers.peer_catalogue import parse_peers

        prompt_tokens = 64 if self.prompt_tokens is None else self.prompt_tokens
        return OfflineArgs(
            dtypes=parse_dtypes(dtypes or ["float32"]),
            batches=parse_batches("1,8,32" if self.batch is None else self.batch),
            lengths=Lengths(prompt=prompt_tokens, answer=max_tokens),
            peers=parse_peers(peers),
            repetitions=1 if self.quick else 3,
            has_busy_neighbour=self.busy_neighbour,
        )


@app.command("offline")
@expand_flags
def offline(
    *,
    model: ModelFlag = DEFAULT_ALIAS,
    dtype: DtypeFlag = [],  # noqa: B006  # typer only reads it
    batch_flags: BatchFlags,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file; default: random ids, with --churn our texts.")
    ] = None,
    peers: Annotated[
        str, typer.Option(help="Engines to measure beside ours: a comma list, all or none.")
    ] = "all",
    threads: ThreadsFlag = 0,
    json_file: JsonFlag = None,
    churn_flags: ChurnFlags,
) -> None:
    """Decoding speed and time to the first token: ours, the peers' and the floor.

    With --churn: tokens per second while requests come and go.
    """
    if churn_flags.churn:
        batch_flags.check_absent()
        offline_churn(
            churn_flags,
            model,
            dtypes=dtype,
            max_tokens=max_tokens,
            prompts=prompts,
            peers=peers,
            threads=threads,
            json_path=json_file,
        )
        return
    churn_flags.check_absent()
    args = batch_flags.read(dtypes=dtype, max_tokens=max_tokens, peers=peers)
    check_json(json_file)
    folder = open_model(model)
    import_torch()
    from outrider.bench.offline.start_offline import (
        bench_offline,  # imports torch, so wrong flags fail first
    )

    bench_offline(
        model,
        folder,
        args,
        prompts_path=prompts,
        json_path=json_file,
        threads=threads,
    )


@app.command("speculation")
def speculation(
    model: ModelFlag = DEFAULT_ALIAS,
    draft: DraftsFlag = ["ngram"],  # noqa: B006  # as above
    steps: Annotated[int | None, typer.Option(help="Depth of every draft tree.")] = None,
    topk: Annotated[int | None, typer.Option(help="Children per node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Size of a tree, root included.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSONL file of prompts with sources; else, and for edits, our own."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts of each kind.", min=1)] = 3,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.0,
    repeat: Annotated[int, typer.Option(help="Runs of each; the fastest counts.", min=1)] = 1,
    dtype: Annotated[str, typer.Option(help="Type of the weights.")] = "float32",
    threads: ThreadsFlag = 0,
    json_file: JsonFlag = None,
) -> None:
    """Plain decoding against drafters, by kind of prompt: speed, acceptance, and what costs."""
    from outrider.bench.offline.offline_args import parse_dtypes
    from outrider.bench.speculation.prompt_kinds import choose_prompts

    sizes = {"steps": steps, "topk": topk, "nodes": nodes}
    given = {name: size for name, size in sizes.items() if size is not None}
    drafts = find_drafts(draft, model, **given)
    chosen = choose_prompts(() if prompts is None else (prompts,), limit=limit)
    (only_dtype,) = parse_dtypes([dtype])[:1]
    check_json(json_file)
    folder = open_model(model)
    import_torch()
    from outrider.bench.speculation.start_speculation import (
        SpeculationArgs,
        bench_speculation,
    )

    args = SpeculationArgs(
        drafts=drafts,
        prompts=chosen,
        max_tokens=max_tokens,
        temperature=temperature,
        dtype=only_dtype,
        repetitions=repeat,
    )
    bench_speculation(model, folder, args, json_path=json_file, threads=threads)


@app.command("perplexity")
def perplexity(
    prompts: Annotated[Path, typer.Option(help="JSONL file; the prompts are the texts.")],
    model: ModelFlag = DEFAULT_ALIAS,
    dtype: DtypeFlag = ["float32", "int8"],  # noqa: B006  # as above
    limit: Annotated[int, typer.Option(help="Take this many texts; 0: all.", min=0)] = 0,
    threads: ThreadsFlag = 0,
    json_file: JsonFlag = None,
) -> None:
    """Perplexity with each type of weights, and its change against the first."""
    from outrider.bench.offline.offline_args import parse_dtypes
    from outrider.bench.texts import read_texts

    dtypes, texts = parse_dtypes(dtype), read_texts(prompts)
    check_json(json_file)
    folder = open_model(model)
    import_torch()
    from outrider.bench.offline.start_offline import bench_perplexity  # imports torch

    bench_perplexity(
        model,
        folder,
        dtypes,
        texts=texts[:limit] if limit else texts,
        json_path=json_file,
        threads=threads,
    )
