"""`outrider bench`: the benchmarks, imported when one runs."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.store.aliases import DEFAULT_ALIAS

app = typer.Typer(help="Measure speed and quality on this machine.", no_args_is_help=True)

ModelFlag = Annotated[str, typer.Option(help="Alias, hub id, GGUF file or folder.")]
DtypeFlag = Annotated[
    list[str], typer.Option(help="Types of the weights: a comma list, or repeat the flag.")
]
ThreadsFlag = Annotated[int, typer.Option(help="Threads of torch; 0: its own choice.", min=0)]
JsonFlag = Annotated[
    Path | None, typer.Option("--json", help="Also write every number to this file.")
]


@app.command("offline")
def offline(
    model: ModelFlag = DEFAULT_ALIAS,
    dtype: DtypeFlag = ["float32"],  # noqa: B006  # typer reads it and never writes
    batch: Annotated[str, typer.Option(help="Batch sizes, a comma list.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option(help="Length of every prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file of prompts; default: random token ids.")
    ] = None,
    peers: Annotated[
        str, typer.Option(help="Engines to measure beside ours: a comma list, all or none.")
    ] = "all",
    threads: ThreadsFlag = 0,
    json_file: JsonFlag = None,
    busy_neighbour: Annotated[
        bool, typer.Option("--busy-neighbour", help="Run beside a process that wants a core.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One run of each instead of 3.")] = False,
) -> None:
    """Decoding speed and time to the first token: ours, the peers' and the floor."""
    from outrider.bench.asked import Lengths, OfflineAsked, parse_batches, parse_dtypes
    from outrider.bench.peers.catalogue import parse_peers

    asked = OfflineAsked(
        dtypes=parse_dtypes(dtype),
        batches=parse_batches(batch),
        lengths=Lengths(prompt=prompt_tokens, answer=max_tokens),
        peers=parse_peers(peers),
        repetitions=1 if quick else 3,
        has_busy_neighbour=busy_neighbour,
    )
    targets, folder = _checked_targets(json_file), _open(model)
    from outrider.bench.start import bench_offline  # torch comes with it: bad flags fail before

    bench_offline(
        model,
        folder,
        asked,
        prompt_files=() if prompts is None else (prompts,),
        targets=targets,
        threads=threads,
    )


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
    from outrider.bench.asked import parse_dtypes
    from outrider.bench.texts import read_texts

    dtypes, texts = parse_dtypes(dtype), read_texts(prompts)
    targets, folder = _checked_targets(json_file), _open(model)
    from outrider.bench.start import bench_perplexity  # torch comes with it

    bench_perplexity(
        model,
        folder,
        dtypes,
        texts=texts[:limit] if limit else texts,
        targets=targets,
        threads=threads,
    )


def _checked_targets(path: Path | None) -> tuple[Path, ...]:
    if path is None:
        return ()
    from outrider.bench.json_file import check_target

    check_target(path)
    return (path,)


def _open(model: str) -> Path:
    from outrider.store.bars import BarReporter
    from outrider.store.resolve import resolve

    return resolve(model, BarReporter())
