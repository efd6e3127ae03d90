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
    """List the models on this machine and the aliases that can be pulled."""
    from outrider.hub.aliases import ALIASES
    from outrider.hub.resolve_model import list_local_models

    for model in list_local_models():
        print(f"{model.name}\t{model.num_bytes / 1e6:.0f} MB\t{model.folder}")
    print(f"aliases: {', '.join(ALIASES)}")
