"""`outrider bench`: the benchmarks, imported when one runs."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from outrider.config.engine import Dtype
from outrider.errors import ConfigError
from outrider.store.aliases import DEFAULT_ALIAS

app = typer.Typer(help="Measure speed and quality on this machine.", no_args_is_help=True)

_DTYPES = ("float32", "bfloat16", "int8")
_REPETITIONS, _QUICK_REPETITIONS = 3, 1

ModelFlag = Annotated[str, typer.Option(help="Alias, hub id, GGUF file or folder.")]
DtypeFlag = Annotated[
    list[str], typer.Option(help="float32, bfloat16, int8: comma list, or repeat the flag.")
]
ThreadsFlag = Annotated[int | None, typer.Option(help="Of torch; default: torch's own choice.")]


@app.command()
def offline(
    model: ModelFlag = DEFAULT_ALIAS,
    dtype: DtypeFlag = ["float32"],  # noqa: B006  # typer copies it
    batch: Annotated[str, typer.Option(help="Batch sizes, a comma list.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option(help="Length of every prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file of prompts; default: random token ids.")
    ] = None,
    peers: Annotated[str, typer.Option(help="Engines to compare with: comma list, all, none.")] = (
        "all"
    ),
    threads: ThreadsFlag = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write every number to this file.")
    ] = None,
    busy_neighbour: Annotated[
        bool, typer.Option("--busy-neighbour", help="Run beside a process that wants a core.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One run of each, not three.")] = False,
) -> None:
    """Decoding speed and time to the first token: ours, peers', and the floor."""
    dtypes, batches = _parse_dtypes(dtype), _parse_batches(batch)
    _check_at_least("--prompt-tokens", prompt_tokens, 1)
    _check_at_least("--max-tokens", max_tokens, 2)  # one would leave nothing to decode
    from outrider.bench import record  # light; the peers' names are checked before torch loads
    from outrider.bench.peers.catalogue import PEERS, find_peers

    chosen = find_peers(tuple(PEERS) if peers == "all" else _split("--peers", peers, none="none"))
    if json_file is not None:
        record.check_target(json_file)
    folder = _open_model(model, threads)

    from outrider.bench import offline, table, workload
    from outrider.bench.progress import run_bar
    from outrider.models.config import read_config

    config = offline.OfflineConfig(
        folder=folder,
        dtypes=dtypes,
        batches=batches,
        peers=chosen,
        repetitions=_QUICK_REPETITIONS if quick else _REPETITIONS,
        has_busy_neighbour=busy_neighbour,
    )
