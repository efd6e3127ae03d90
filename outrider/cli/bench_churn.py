"""The flags of `outrider bench offline --churn`: requests that come and go."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench_flags import check_json, find_drafts, open_model
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch

if TYPE_CHECKING:
    from outrider.bench.churn.churn_args import ChurnArgs
    from outrider.config.draft_config import DraftConfig
    from outrider.config.engine_config import Auto, Dtype

_ROWS = "1,8,32"
_REQUESTS = 64
_WAYS = "plain,fixed,adaptive"
_EVERY = 1 << 30  # of our own texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnFlags:
    """The flags that go with --churn; None: not given."""

    churn: Annotated[
        bool,
        typer.Option("--churn", help="Requests that come and go: plain, fixed, adaptive drafting."),
    ] = False
    rows: Annotated[
        str | None, typer.Option(help=f"With --churn: requests at a time, a comma list: {_ROWS}.")
    ] = None
    requests: Annotated[
        int | None, typer.Option(help=f"With --churn: requests of a load: {_REQUESTS}.", min=1)
    ] = None
    requests_per_row: Annotated[
        int | None,
        typer.Option(help="With --churn: requests of a load for each row, at most: 32.", min=2),
    ] = None
    ways: Annotated[str | None, typer.Option(help=f"With --churn: {_WAYS}, or some.")] = None
    draft: Annotated[
        str | None, typer.Option(help="With --churn: the drafter, as for generate: auto.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="With --churn: depth of a tree.")] = None
    topk: Annotated[int | None, typer.Option(help="With --churn: children per node.")] = None
    nodes: Annotated[int | None, typer.Option(help="With --churn: size of a tree.")] = None
    device: Annotated[str | None, typer.Option(help="With --churn: auto, cpu, cuda, ...")] = None
    plot: Annotated[Path | None, typer.Option(help="With --churn: write a PNG picture.")] = None

    def check_absent(self) -> None:
        """Refuse them where no requests come and go."""
        given = [name for name, value in asdict(self).items() if value not in (None, False)]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} goes with --churn; add it")

    def sizes(self) -> dict[str, int]:
        """The sizes of a draft tree that were given."""
        sizes = {"steps": self.steps, "topk": self.topk, "nodes": self.nodes}
        return {name: size for name, size in sizes.items() if size is not None}


def offline_churn(
    flags: ChurnFlags,
    model: str,
    *,
    dtypes: Sequence[str],
    max_tokens: int,
    prompts: Path | None,
    peers: str,
    threads: int,
    json_path: Path | None,
) -> None:
    """Check the flags, then run the load."""
    from outrider.bench.picture_file import check_picture

    if max_tokens < 1:
        raise ConfigError(f"--max-tokens must be at least 1, got {max_tokens}")
    args = read_churn_args(
        flags, model, dtypes, max_tokens=max_tokens, prompts=prompts, peers=peers
    )
    check_json(json_path)
    if flags.plot is not None:
        check_picture(flags.plot)
    folder = open_model(model)
    import_torch()
    from outrider.bench.churn.start_churn_load import bench_churn_load  # imports torch

    bench_churn_load(
        model, folder, args, json_path=json_path, picture_path=flags.plot, threads=threads
    )


def read_churn_args(
    flags: ChurnFlags,
    model: str,
    dtypes: Sequence[str],
    *,
    max_tokens: int,
    prompts: Path | None,
    peers: str,
) -> "ChurnArgs":
    """The load that the flags ask for."""
    from outrider.bench.churn.churn_args import ChurnArgs, ChurnPlace
    from outrider.bench.churn.churn_work import PER_ROW, ChurnWork, parse_ways
    from outrider.bench.offline.offline_args import parse_rows
    from outrider.bench.peers.churn_catalogue import parse_churn_peers

    work = ChurnWork(
        rows=parse_rows(_ROWS if flags.rows is None else flags.rows),
        requests=_REQUESTS if flags.requests is None else flags.requests,
        per_row=PER_ROW if flags.requests_per_row is None else flags.requests_per_row,
        answer=max_tokens,
        ways=parse_ways(_WAYS if flags.ways is None else flags.ways),
    )
    return ChurnArgs(
        work=work,
        place=ChurnPlace(dtype=_one_dtype(dtypes), device=flags.device or "auto"),
        peers=parse_churn_peers(peers),
        texts=_texts(prompts),
        origin="our own" if prompts is None else prompts.name,
        draft=_find_draft(flags, model, work.ways),
    )


def _one_dtype(dtypes: Sequence[str]) -> "Dtype | Auto":
    from outrider.bench.offline.offline_args import parse_dtypes

    if not dtypes:
        return "auto"
    parsed = parse_dtypes(dtypes)
    if len(parsed) > 1:
        raise ConfigError("--churn runs one type of weights; give one --dtype")
    return parsed[0]


def _texts(prompts: Path | None) -> tuple[str, ...]:
    from outrider.bench.speculation.prompt_kinds import choose_prompts
    from outrider.bench.texts import read_texts

    if prompts is not None:
        return tuple(read_texts(prompts))
    return tuple(prompt.text for prompt in choose_prompts((), limit=_EVERY))


def _find_draft(flags: ChurnFlags, model: str, ways: Sequence[str]) -> "DraftConfig":
    from outrider.config.draft_config import NO_DRAFT

    if tuple(ways) == ("plain",):
        return NO_DRAFT
    (draft,) = find_drafts([flags.draft or "auto"], model, **flags.sizes()).values()
    return draft
