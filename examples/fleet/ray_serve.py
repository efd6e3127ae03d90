"""Outrider under Ray Serve: replicas by load, and updates that lose no answer.

    pip install 'outrider[ray-serve]'
    serve run examples.fleet.ray_serve:app model=Qwen/Qwen3-8B flags='--draft ngram'
    serve run examples.fleet.ray_serve:app model=Qwen/Qwen3-8B gpus=0 cpus=8    # without a GPU

Each replica is an `outrider serve` on a free port of its machine, with all of its routes. Ray
chooses a replica for each request, starts and ends replicas, and replaces them one after the other
when a second `serve run` has other arguments.
"""

import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

_COMMAND = [sys.executable, "-c", "from outrider.cli.main import main; main()", "serve"]
_NOT_PASSED_ON = {"host", "connection", "content-length", "transfer-encoding", "date", "server"}


@serve.deployment(
    max_ongoing_requests=64,  # above --max-num-seqs: the server batches those that wait
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 32,  # running and queued, of a replica
    },
    graceful_shutdown_timeout_s=600,  # running answers go on for so long
)
class OutriderReplica:
    """Owns a server. Ray ends it when its last answer is complete."""

    def __init__(self, model: str, flags: list[str]) -> None:
        arguments = ["--model", model, "--host", "127.0.0.1", "--port", "0", *flags]
        self._process = subprocess.Popen([*_COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready_line = self._process.stdout.readline()  # the model is loaded
        if " at http" not in ready_line:
            raise RuntimeError(
                "outrider serve did not start; its messages are in the replica's log"
            )
        self._url = ready_line.split()[-1]
        self._session: aiohttp.ClientSession | None = None  # made in the event loop of requests

    async def __call__(self, request: Request) -> StreamingResponse:
        """Pass a request on, and its answer back as it comes."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        url = f"{self._url}{request.url.path}?{request.url.query}".removesuffix("?")
        answer = await self._session.request(
            request.method, url, headers=_passed_on(request.headers), data=await request.body()
        )
        return StreamingResponse(
            _read(answer), status_code=answer.status, headers=_passed_on(answer.headers)
        )

    def check_health(self) -> None:
        """A server replaces a worker that dies by itself; without its process nothing does."""
        if self._process.poll() is not None:
            raise RuntimeError("outrider serve has ended")

    def __del__(self) -> None:
        self._process.terminate()
        self._process.wait()


async def _read(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. A client that leaves closes the connection, which ends the request."""
    try:
        async for data in answer.content.iter_any():
            yield data
    finally:
        answer.close()


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}


def app(args: dict[str, str]) -> serve.Application:
    """The application for `serve run` and `serve deploy`."""
    needs = {"num_gpus": float(args.get("gpus", "1")), "num_cpus": float(args.get("cpus", "1"))}
    flags = shlex.split(args.get("flags", ""))
    replica = cast("Any", OutriderReplica)  # Ray's decorator makes a deployment of the class
    return replica.options(ray_actor_options=needs).bind(args["model"], flags)
