"""The reports of `outrider doctor mtp` on a DeepSeek-V4 folder: a module, or DSpark."""

from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.deepseek_v4.dspark_config import V4DSparkConfig
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_dspark import find_dspark
from outrider.models.deepseek_v4.v4_module import count_v4_modules
from outrider.models.deepseek_v4.v4_tensors import module_prefix
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.safetensors_reader import Checkpoint


def inspect_v4_modules(folder: Path, config: V4Config) -> ModuleReport:
    """The report on its draft modules. A bad module gives a problem, not an exception."""
    try:
        num = count_v4_modules(folder, config)
    except ConfigError as error:
        return ModuleReport(num=0, facts=(), problems=(str(error),), notes=())
    facts = (
        ("modules", f"{num} of deepseek-v4"),
        ("tensors", f"{module_prefix(0)}*"),
        ("captures", "all residual streams, before they become one"),
    )
    note = "one module was trained for one step; it is repeated for further ones"
    return ModuleReport(num=1, facts=facts, problems=(), notes=(note,))


def inspect_v4_dspark(folder: Path, config: V4Config, dspark: V4DSparkConfig) -> ModuleReport:
    """The report on its DSpark drafter."""
    try:
        with Checkpoint(folder) as checkpoint:
            found = find_dspark(config, dspark, checkpoint)
    except ConfigError as error:
        return ModuleReport(num=0, facts=(), problems=(str(error),), notes=())
    after = ", ".join(map(str, dspark.layers))
    size, rank = dspark.block_size, dspark.markov_rank
    heads = f"Markov head of rank {rank}" + (", confidence head" if found.has_confidence else "")
    facts = (
        ("drafter", f"DSpark of deepseek-v4, {dspark.num_stages} layers"),
        ("tensors", f"{module_prefix(0)}* to {module_prefix(dspark.num_stages - 1)}*"),
        (
            "captures",
            f"after {after} of {config.num_layers} layers, mean of {config.num_streams} residual "
            "streams",
        ),
        (
            "block",
            f"{size} slots in one pass, {size} drafts, a slot predicts the next token, "
            f"bidirectional, {heads}",
        ),
        ("context", f"the last {config.attention.window} tokens"),
    )
    return ModuleReport(num=1, facts=facts, problems=(), notes=())
