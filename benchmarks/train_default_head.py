"""The recipe of the head that ships, by the clock: answers of several processes, then a run.

    python -m benchmarks.train_default_head answers --prompts train.jsonl --out DIR
    python -m benchmarks.train_default_head train eagle3 --out DIR --seconds 480
    python -m benchmarks.train_default_head train dspark --out DIR --seconds 240

The head is in DIR/eagle3/head. A run whose time ends exports its last checkpoint. A run that began
with the shipped head on other answers forgets some of what that head knew; their mean did not:

    python -m benchmarks.train_default_head mean SHIPPED DIR/eagle3/head --out DIR/mean
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.shipped_heads import shipped_head
from outrider.train.checkpoints import list_checkpoints

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

_OUTRIDER = (
    sys.executable,
    "-c",
    "import sys; from outrider.cli.main import main; sys.exit(main())",
)
WEIGHTS = "model.safetensors"
_START_S = 75  # for the start of all engines
_REST_S = 55  # of a run: reading the answers before its budget begins, the export after it
_FLAGS = {
    "eagle3": "--layout eagle3.1 --draft-vocab 12288 --depth 6 --head-frozen 0 --head-lr 0.2 "
    "--lr 1e-3 --warmup 0.03 --compile --cache-gb 90",
    "dspark": "--layers 2 --block 7 --markov-rank 32 --anchors 256 --lr 1e-3",
}
_SAME = (
    "--loss lk --optimizer muon --epochs 100 --log-every 100 --eval-every 1000 --save-every 1000"
)

Out = Annotated[Path, typer.Option(help="Folder of answers and runs.")]
Device = Annotated[str, typer.Option(help="cuda or cpu.")]
Sizes = Annotated[str, typer.Option(help="Flags that replace those of the recipe.")]


@app.command()
def answers(
    prompts: Annotated[Path, typer.Option(help="JSONL of prompts.")],
    out: Out,
    processes: Annotated[int, typer.Option(help="Each takes a part of the prompts.", min=1)] = 8,
    turns_s: Annotated[int, typer.Option(help="Seconds for self-written turns.")] = 25,
    answers_s: Annotated[int, typer.Option(help="Seconds for answers to all prompts.")] = 105,
    texts_s: Annotated[int, typer.Option(help="Seconds for prompts about own texts.")] = 45,
    device: Device = "cuda",
    sizes: Sizes = "--rows 384 --length 1024 --answer-tokens 256",
) -> None:
    """Let several processes write prompts, answer them and those of the file."""
    out.mkdir(parents=True, exist_ok=True)
    times = ["--turns-s", turns_s, "--generate-s", answers_s, "--texts-s", texts_s]
    # What others take while an engine measures itself counts as its own, and no engine takes more
    # pages than its rows can fill: a share for each would leave some without pages.
    share = ["--gpu-memory-utilization", 0.9, "--temperatures", "0,0.8,1"]
    runs = [
        _start(
            ["train", "answers", "--prompts", prompts, "--part", f"{part}/{processes}", "--seed", 7,
             "--device", device, *times, *share, *sizes.split(), "--out", _file(out, part)],
            out / f"answers{part}.log",
        )
        for part in range(1, processes + 1)
    ]  # fmt: skip
    end = time.monotonic() + _START_S + turns_s + answers_s + texts_s
    for run in runs:
        _wait(run, end)
    print(f"answered tokens by source: {dict(_count(_files(out)))}")


@app.command()
def train(
    kind: Annotated[Literal["eagle3", "dspark"], typer.Argument(help="Kind of the head.")],
    out: Out,
    seconds: Annotated[int, typer.Option(help="For all of it, the export included.", min=2)],
    device: Device = "cuda",
    sizes: Sizes = "--length 1024 --batch 16",
) -> None:
    """Train on the answers, EAGLE-3 from the shipped head on, and export what there is."""
    end, run = time.monotonic() + seconds - _REST_S // 4, out / kind
    flags = [*_FLAGS[kind].split(), *_SAME.split(), *sizes.split(), "--device", device]
    head = shipped_head(DEFAULT_ALIAS)
    if kind == "eagle3" and head is not None:
        flags += ["--init-from", str(head.folder)]
    flags += [each for file in _files(out) for each in ("--answers", str(file))]
    budget = max(seconds - _REST_S, seconds // 2)
    command = ["train", kind, *flags, "--budget-s", budget, "--out", run]
    _wait(_start(command, out / f"{kind}.log"), end)
    checkpoints = list_checkpoints(run / "checkpoints")
    if checkpoints and not (run / "head").exists():
        _wait(_start(["train", "export", checkpoints[-1], "--out", run / "head"], out / "x.log"))
    print((out / f"{kind}.log").read_text()[-3000:])


@app.command()
def mean(
    first: Annotated[Path, typer.Argument(help="Folder of a head.", exists=True)],
    second: Annotated[
        Path, typer.Argument(help="Folder of a head trained on from the first.", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new head.")],
) -> None:
    """Write the head whose weights are the means of those of two heads."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    files = first / WEIGHTS, second / WEIGHTS
    one, other = map(load_file, files)
    if one.keys() != other.keys() or not torch.equal(one["d2t"], other["d2t"]):
        raise SystemExit(f"{second} was not trained on from {first}: other tensors or draft tokens")
    both = {
        name: torch.stack((one[name].float(), other[name].float())).mean(0).to(one[name].dtype)
        if one[name].is_floating_point()
        else one[name]
        for name in one
    }
    out.mkdir(parents=True, exist_ok=True)
    with safe_open(files[0], "pt") as stored:
        save_file(both, out / WEIGHTS, metadata=stored.metadata())
    shutil.copy(first / "config.json", out)


def _start(arguments: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
    command = [*_OUTRIDER, *map(str, arguments)]
    # A compiler that fails costs speed, not the run.
    environment = os.environ | {"TORCHDYNAMO_SUPPRESS_ERRORS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def _wait(run: subprocess.Popen[bytes], end: float = float("inf")) -> None:
    """Wait for the process. At `end` it is interrupted: it then saves what it has."""
    try:
        run.wait(None if end == float("inf") else max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        run.wait()


def _file(out: Path, part: int) -> Path:
    return out / f"answers{part:02d}.jsonl"


def _files(out: Path) -> list[Path]:
    return sorted(out.glob("answers[0-9][0-9].jsonl"))


def _count(files: list[Path]) -> Counter[str]:
    """Answered tokens by source."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_text().splitlines()[:-1]:  # the last may be cut off
            document = json.loads(line)
            counts[document["source"]] += sum(stop - start for start, stop in document["answers"])
    return counts


if __name__ == "__main__":
    app()
