"""`outrider bench serve`: load on an OpenAI-compatible server, ours or another one."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.serve.serve_args import LoadArgs


def _server(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Server", **more)


def _load(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Load", **more)


def _report(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Report", **more)


UrlFlag = Annotated[str, _server("Address of the server.")]
ModelFlag = Annotated[str | None, _server("Name of the model; default: the only one listed.")]
KeyFlag = Annotated[str, _server("What the server wants as a key.", envvar="OUTRIDER_API_KEY")]
EndpointFlag = Annotated[Literal["chat", "completions"], _server("Which route is used.")]
TimeoutFlag = Annotated[float, _server("Seconds until a request is given up.", min=0.001)]
PromptsFlag = Annotated[Path, _load("JSONL file of prompts, used in order.")]
NumFlag = Annotated[int, _load("Requests; prompts are repeated when they run out.", min=1)]
RateFlag = Annotated[float | None, _load("Open loop: requests per second, Poisson arrivals.")]
ConcurrencyFlag = Annotated[
    int | None, _load("Closed loop: requests at a time; 16 without --rate.", min=1)
]
LengthFlag = Annotated[int, _load("Longest answer.", min=1)]
TemperatureFlag = Annotated[float, _load("0: greedy.", min=0.0)]
SeedFlag = Annotated[int, _load("Of the arrivals and, above temperature 0, of the answers.")]
EndlessFlag = Annotated[
    bool, _load("Only --max-tokens ends an answer; ours, vLLM and SGLang know it.")
]
ExtraFlag = Annotated[str, _load("Further fields of every request, as a JSON object.")]
WarmUpFlag = Annotated[int, _load("Requests before the run, not counted.", min=0)]
TtftFlag = Annotated[float, _report("Goodput: latest first token.", min=0.0)]
TpotFlag = Annotated[float, _report("Goodput: largest mean time per token.", min=0.0)]
PlotFlag = Annotated[Path | None, _report("Also draw the run as this PNG.")]


def bench_serve(
    prompts: PromptsFlag,
    base_url: UrlFlag = "http://127.0.0.1:8000",
    model: ModelFlag = None,
    api_key: KeyFlag = "",
    endpoint: EndpointFlag = "chat",
    timeout: TimeoutFlag = 600.0,
    num: NumFlag = 200,
    rate: RateFlag = None,
    concurrency: ConcurrencyFlag = None,
    max_tokens: LengthFlag = 128,
    temperature: TemperatureFlag = 0.0,
    seed: SeedFlag = 0,
    ignore_eos: EndlessFlag = False,
    extra_body: ExtraFlag = "{}",
    warm_up: WarmUpFlag = 1,
    slo_ttft_ms: TtftFlag = 500.0,
    slo_tpot_ms: TpotFlag = 50.0,
    json_file: JsonFlag = None,
    plot: PlotFlag = None,
) -> None:
    """Load on a server: latencies, throughput, goodput and acceptance as clients see them."""
    from outrider.bench.serve import serve_args
    from outrider.bench.texts import read_texts

    endless = {"ignore_eos": True} if ignore_eos else {}
    fields = {"max_tokens": max_tokens, "temperature": temperature} | endless
    args = serve_args.LoadArgs(
        endpoint=serve_args.Endpoint(
            base_url=serve_args.parse_base_url(base_url),
            name=endpoint,
            api_key=api_key,
            timeout_s=timeout,
        ),
        models=() if model is None else (model,),
        questions=serve_args.LoadQuestions(
            prompts=tuple(read_texts(prompts)),
            origin=prompts.name,
            num=num,
            seed=seed,
            fields=fields | serve_args.parse_extra(extra_body),
        ),
        pattern=serve_args.choose_pattern(rate=rate, concurrency=concurrency, seed=seed),
        slo=serve_args.Slo(ttft_s=slo_ttft_ms / 1e3, tpot_s=slo_tpot_ms / 1e3),
        num_warm_up=warm_up,
    )
    check_json(json_file)
    _run(args, json_path=json_file, picture_path=plot)


def _run(args: "LoadArgs", *, json_path: Path | None, picture_path: Path | None) -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(f"the load generator needs aiohttp; {install_hint('bench')}")
    from outrider.bench.picture_file import check_picture
    from outrider.bench.serve.start_serve import bench_load

    if picture_path is not None:
        check_picture(picture_path)
    bench_load(args, json_path=json_path, picture_path=picture_path)
