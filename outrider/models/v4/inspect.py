"""What `outrider doctor mtp` says about a DeepSeek-V4 folder."""

from pathlib import Path

from outrider.models.mtp.inspect import ModuleReport
from outrider.models.v4.module import count_v4_modules
from outrider.models.v4.names import module_prefix


def inspect_v4_modules(folder: Path) -> ModuleReport:
    """The report on its draft modules; of several, the first drafts."""
    num = count_v4_modules(folder)
    if not num:
        problem = f"{folder} holds no draft module (no tensor begins with {module_prefix(0)})"
        return ModuleReport(num=0, facts=(), problems=(problem,), notes=())
    facts = (
        ("modules", f"{num} of deepseek-v4"),
        ("tensors", f"{module_prefix(0)}*"),
        ("captures", "all residual streams, before they become one"),
    )
    note = "one module was trained for one step; it is repeated for further ones"
    return ModuleReport(num=1, facts=facts, problems=(), notes=(note,))
