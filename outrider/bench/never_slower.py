"""What adaptive drafting must reach, and how tables show that it does not."""

LEAST_TO_PLAIN = 0.98  # of the speed of plain decoding
LEAST_TO_BEST = 0.97  # of the speed of the best fixed budget


def show_ratio(ratio: float, *, least: float) -> str:
    """Three decimals; a miss is bold in Markdown, which can also be seen without a terminal."""
    return f"**{ratio:.3f}**" if ratio < least else f"{ratio:.3f}"
