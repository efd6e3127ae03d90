"""Refuses at start what an attention backend cannot do in a step."""

from outrider.config.attention_choice import Role, host_knows_lengths
from outrider.config.settings import Settings
from outrider.errors import ConfigError
from outrider.step.attention_backend import Capabilities
from outrider.wire.draft_budget import Budget


def check_backend(can: Capabilities, role: Role, settings: Settings, budget: Budget) -> None:
    """Refuse trees, pages and overlapping steps that the backend of this role cannot run."""
    page_size, nodes, depth = settings.host.page_size, budget.nodes, settings.execution.depth
    if can.chain_only and budget.topk > 1:
        raise ConfigError(
            f"this model checks chains only, and topk {budget.topk} makes trees; use --topk 1"
        )
    if page_size not in can.page_sizes:
        sizes = f"{can.page_sizes.start} to {can.page_sizes.stop - 1}"
        raise ConfigError(f"attention has no pages of {page_size} tokens; use {sizes}")
    if nodes > can.max_nodes:
        raise ConfigError(f"attention takes trees of {can.max_nodes} nodes; lower --nodes {nodes}")
    if can.needs_host_lengths and not host_knows_lengths(role, depth):
        raise ConfigError(
            f"the attention backend of the {role} needs the lengths of rows on the host, which are "
            f"not known there with depth {depth}; use depth 0"
        )
