"""Time to the first token of a prompt with an image, in the engine, with random weights.

python -m benchmarks.steps.time_images --images 480x640 1024x1024

The shape is Qwen2.5-VL-7B's. Decoding the file and resizing, in the front end, are not counted.
"""

import argparse
import hashlib
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.dummy_models import dummy_decoder
from outrider.config.engine_config import CacheConfig, Dtype, EngineConfig, LimitsConfig
from outrider.config.settings import USUAL_PAGE, resolve_settings
from outrider.engine.engine import Engine
from outrider.models.model_config import parse_config
from outrider.models.vision.pixel_scaling import PixelScaling
from outrider.models.vision.vision_tower import VisionTower
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import NoDraft
from outrider.wire.draft_budget import PLAIN
from outrider.wire.image_span import ImagePixels, image_span
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Submission

_PATCH, _MERGE, _TEXT = 14, 2, 32  # tokens of text before and after an image
_CONTEXT = 8192
_TOWER = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
}
_DECODER = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
_TINY_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
_TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTimes:
    """Medians in seconds."""

    num_tokens: int  # of the whole prompt
    cold_s: float  # tower and prompt
    cached_s: float  # the prefix cache has the image
    text_s: float  # a prompt of as many tokens without an image


def build_engine(device: torch.device, *, is_tiny: bool) -> Engine:
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
    fields = _DECODER | _TINY if is_tiny else _DECODER
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
        tower=_dummy_tower(device, model.dtype, is_tiny=is_tiny),
    )
    return Engine(runner, facts, runner.grammars)


def _dummy_tower(device: torch.device, dtype: torch.dtype, *, is_tiny: bool) -> VisionTower:
    from transformers import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as theirs

    from outrider.models.vision.qwen2_5_vl_tower import Qwen2_5VLTower

    fields: dict[str, Any] = _TINY_TOWER | {"out_hidden_size": 64} if is_tiny else _TOWER
    config = Qwen2_5_VLConfig(vision_config=fields).vision_config
    config._attn_implementation = "sdpa"
    with torch.device(device):
        tower = theirs.Qwen2_5_VisionTransformerPretrainedModel(config).to(dtype).eval()
    scaling = PixelScaling(
        factor=1 / 255, mean=torch.full((3,), 0.5, device=device), std=torch.ones(3, device=device)
    )
    return Qwen2_5VLTower(tower, scaling, most_pixels=1 << 20, dtype=dtype)


def random_image(height: int, width: int, *, seed: int) -> ImagePixels:
    """An image that is resized to whole groups of patches."""
    grid = (max(height // (_PATCH * _MERGE), 1), max(width // (_PATCH * _MERGE), 1))
    shape = (grid[0] * grid[1] * _MERGE**2, 3, _PATCH**2)
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


def time_image(engine: Engine, height: int, width: int, *, runs: int) -> ImageTimes:
    """One request after another, each for one token; the first run of each kind is not counted."""
    times: dict[str, list[float]] = {"cold": [], "cached": [], "text": []}
    for run in range(runs + 1):
        image = random_image(height, width, seed=run)
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
    parser.add_argument("--images", nargs="+", default=["480x640", "1024x1024"], help="HxW")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="runs fast on a CPU")
    args = parser.parse_args()
    engine = build_engine(torch.device(args.device), is_tiny=args.tiny)
    for size in args.images:
        height, width = map(int, size.split("x"))
        found = time_image(engine, height, width, runs=args.runs)
        print(
            f"{size}: {found.num_tokens} tokens, first token after {found.cold_s * 1e3:.1f} ms, "
            f"{found.cached_s * 1e3:.1f} ms with the image cached, {found.text_s * 1e3:.1f} ms for "
            "as much text",
            flush=True,
        )


if __name__ == "__main__":
    main()
