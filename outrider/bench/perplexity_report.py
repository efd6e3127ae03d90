"""What `outrider bench perplexity` prints and writes."""

from collections.abc import Sequence
from typing import Any

from outrider.bench.perplexity import Perplexity
from outrider.bench.report import ReportPrinter, build_table, describe_record, numbers, wrapped


def print_perplexities(model: str, num_texts: int, perplexities: Sequence[Perplexity]) -> None:
    """Print them on stdout with the change against the first."""
    first = perplexities[0]
    rows = [
        (each.dtype, f"{each.perplexity:.4f}", f"{each.change_from(first):+.3%}")
        for each in perplexities
    ]
    printer = ReportPrinter()
    printer.line(f"{model}: {num_texts} texts, {first.num_tokens} tokens")
    columns = (*wrapped("dtype"), *numbers("perplexity", f"vs {first.dtype}"))
    printer.table(build_table(columns, rows))


def describe_perplexities(
    model: str, num_texts: int, perplexities: Sequence[Perplexity]
) -> dict[str, Any]:
    """Every number, with the change against the first type of weights."""
    return {
        "model": model,
        "num_texts": num_texts,
        "results": [
            describe_record(each) | {"change": each.change_from(perplexities[0])}
            for each in perplexities
        ],
    }
