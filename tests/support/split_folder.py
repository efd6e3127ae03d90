"""A model folder with several weight files, as large models are published."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file


def split_folder(folder: Path, num: int) -> None:
    """Deal the tensors of a folder out to files, so that neighbours lie in different ones."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards: list[dict] = [{} for _ in range(num)]
    weight_map = {}
    for place, name in enumerate(sorted(tensors)):
        shards[place % num][name] = tensors[name]
        weight_map[name] = f"model-{place % num + 1:05d}-of-{num:05d}.safetensors"
    for place, shard in enumerate(shards):
        save_file(shard, folder / f"model-{place + 1:05d}-of-{num:05d}.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
