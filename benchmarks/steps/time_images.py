"""Time to the first token of a prompt with an image, in the engine, with random weights.

python -m benchmarks.steps.time_images --shape qwen3-vl-8b --images 480x640 1024x1024

Decoding the file and resizing, in the front end, are not counted.
"""

import argparse
import hashlib
import time
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.dummy_models import dummy_decoder
from benchmarks.steps.image_shapes import MERGE, SHAPES, ImageShape, make_dummy_tower
from outrider.config.engine_config import CacheConfig, Dtype, EngineConfig, LimitsConfig
from outrider.config.settings import USUAL_PAGE, resolve_settings
from outrider.engine.engine import Engine
from outrider.models.model_config import parse_config
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import NoDraft
from outrider.wire.draft_budget import PLAIN
from outrider.wire.image_span import ImagePixels, image_span
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Submission

_TEXT = 32  # tokens before and after an image
_CONTEXT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTimes:
    """Medians in seconds."""

    num_tokens: int  # of the whole prompt
    cold_s: float  # tower and prompt
    cached_s: float  # the prefix cache has the image
    text_s: float  # a prompt of as many tokens without an image


def build_engine(shape: ImageShape, device: torch.device, *, is_tiny: bool) -> Engine:
    """Random weights, no drafter."""
    dtype: Dtype = "bfloat16" if device.type == "cuda" else "float32"
    config = EngineConfig(
        dtype=dtype,
        device=str(device),
        limits=LimitsConfig(context=_CONTEXT, rows=4),
        cache=CacheConfig(kv_tokens=4 * _CONTEXT),
    )
    settings = resolve_settings(
        config,
        model_context=_CONTEXT,
        num_cuda=torch.cuda.device_count(),
        usual_page=USUAL_PAGE,
    )
    fields = shape.decoder | shape.tiny_decoder if is_tiny else shape.decoder
    model = dummy_decoder(
        parse_config(fields),
        dtype=dtype,
        device=device,
        arithmetic=settings.execution.arithmetic,
    )
    runner, facts = assemble_runner(
        model,
        settings,
        draft=NoDraft(),
        kv_tokens=config.cache.kv_tokens,
        buckets=choose_buckets(settings, NoDraft()),
        tower=make_dummy_tower(shape, device=device, dtype=model.dtype, is_tiny=is_tiny),
    )
    return Engine(runner, facts, runner.grammars)


def random_image(height: int, width: int, *, patch: int, seed: int) -> ImagePixels:
    """An image that is resized to whole groups of patches."""
    grid = (max(height // (patch * MERGE), 1), max(width // (patch * MERGE), 1))
    shape = (grid[0] * grid[1] * MERGE**2, 3, patch**2)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    data = values.numpy().tobytes()
    digest = hashlib.sha256(data).digest()
    return ImagePixels(shape=shape, grid=grid, digest=digest, has_axes=True, values=data)


def first_token_s(engine: Engine, submission: Submission) -> float:
    began_s = time.perf_counter()
    engine.add(submission)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began_s


def time_image(engine: Engine, height: int, width: int, *, patch: int, runs: int) -> ImageTimes:
    """One request after another, each for one token; the first run of each kind is not counted."""
    times: dict[str, list[float]] = {"cold": [], "cached": [], "text": []}
    for run in range(runs + 1):
        image = random_image(height, width, patch=patch, seed=run)
        seen = _submission(f"{run}", image, text=run)
        times["cold"].append(first_token_s(engine, seen))
        times["cached"].append(first_token_s(engine, seen))
        plain = Submission(
            request_id="text",
            prompt=tuple((run + 7 * at) % 500 for at in range(len(seen.prompt))),
            sampling=seen.sampling,
            limits=seen.limits,
            budget=PLAIN,
        )
        times["text"].append(first_token_s(engine, plain))
    middle = {name: median(each[1:]) for name, each in times.items()}
    return ImageTimes(
        num_tokens=len(seen.prompt),
        cold_s=middle["cold"],
        cached_s=middle["cached"],
        text_s=middle["text"],
    )


def _submission(name: str, image: ImagePixels, *, text: int) -> Submission:
    around = (1 + text % 500,) * _TEXT  # another text in each run: nothing of it is cached
    return Submission(
        request_id=name,
        prompt=(*around, *[0] * image.num_tokens, *around),
        sampling=RowSampling(seed=0, temperature=0.0),
        limits=Limits(max_tokens=1, stop_ids=frozenset()),
        budget=PLAIN,
        images=(image_span(_TEXT, image),),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen3-vl-8b")
    parser.add_argument("--images", nargs="+", default=["480x640", "1024x1024"], help="HxW")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="runs fast on a CPU")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    engine = build_engine(shape, torch.device(args.device), is_tiny=args.tiny)
    for size in args.images:
        height, width = map(int, size.split("x"))
        found = time_image(engine, height, width, patch=shape.patch, runs=args.runs)
        print(
            f"{size}: {found.num_tokens} tokens, first token after {found.cold_s * 1e3:.1f} ms, "
            f"{found.cached_s * 1e3:.1f} ms with the image cached, {found.text_s * 1e3:.1f} ms for "
            "as much text",
            flush=True,
        )


if __name__ == "__main__":
    main()
