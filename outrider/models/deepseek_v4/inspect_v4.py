"""The report of `outrider doctor mtp` on a DeepSeek-V4 folder."""

from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_module import count_v4_modules
from outrider.models.deepseek_v4.v4_tensors import module_prefix
from outrider.models.mtp.inspect_modules import ModuleReport


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
