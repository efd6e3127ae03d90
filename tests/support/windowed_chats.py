"""Chats with models whose layers have sliding windows, in engines with few window pages."""

from dataclasses import replace

from outrider.wire.window_facts import most_window_pages
from support.engines import Shape, engine_of
from support.row_chats import conversation
from support.styled_models import TREES


def tight_shape(models, draft, *, page_size, depth=0, **how):
    """One request alone has just the window pages that it can need."""
    shape = Shape(
        page_size=page_size,
        depth=depth,
        max_rows=3,
        step_tokens=3 * TREES["tree"].nodes + 9,
        **how,
    )
    return replace(shape, window_tokens=fewest_window_tokens(models.target, shape, draft))


def fewest_window_tokens(target, shape, draft):
    """What one request alone can need."""
    num_pages = most_window_pages(
        min(each.tokens for each in target.config.pattern.all_seen),
        page_size=shape.page_size,
        step_tokens=shape.step_tokens,
        reach=draft.facts.reach(draft.facts.budget),
        depth=shape.depth,
    )
    return num_pages * shape.page_size


def cold_and_warm_windows(models, drafter, tree, *, page_size=4, sampling="greedy", **how):
    """The same chat without a prefix cache and with all pages; with a cache and few window pages;
    and there again.
    """
    draft = models.draft(drafter, tree)
    tight = tight_shape(models, draft, page_size=page_size, **how)
    cold = engine_of(models.target, replace(tight, prefix_cache=False, window_tokens="auto"), draft)
    warm = engine_of(models.target, tight, draft)
    return [conversation(each, sampling, seed=5) for each in (cold, warm, warm)]
