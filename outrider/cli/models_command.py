"""`outrider pull` and `outrider models`: weights on this machine."""

from typing import Annotated

import typer


def pull(
    model: Annotated[str, typer.Argument(help="Alias, hub id or GGUF file.")],
) -> None:
    """Fetch a model and print its folder."""
    from outrider.hub.download_bars import BarReporter
    from outrider.hub.resolve_model import resolve_model

    print(resolve_model(model, BarReporter()))


def models() -> None:
    """List the models on this machine, what they hold in memory, and aliases to pull."""
    from outrider.hub.aliases import ALIASES
    from outrider.hub.count_parameters import count_parameters
    from outrider.hub.resolve_model import list_local_models

    for model in list_local_models():
        num = count_parameters(model.folder)
        held = f"{num * 4 / 1e6:.0f} MB in memory on a CPU, {num * 2 / 1e6:.0f} MB on a GPU"
        print(f"{model.name}\t{model.num_bytes / 1e6:.0f} MB on disk\t{held}\t{model.folder}")
    print("The KV cache comes on top: the start line of outrider serve says how large it can get.")
    print("With --kv-cache-dtype fp8 a token takes half of that on a GPU, and a quarter on a CPU.")
    print(f"aliases: {', '.join(ALIASES)}")
