"""Paths out of known texts: what followed the last tokens of a row where they occurred before."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPaths:
    """What followed the last tokens of each row where they occurred before."""

    paths: torch.Tensor  # [rows, num, steps] tokens; -1 where a text ended
    weights: torch.Tensor  # [rows, num] 0 where there is no path
    longest: torch.Tensor  # [rows] tokens of the longest match


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTree:
    """Paths of a row as one tree: paths that begin alike share their nodes."""

    first: torch.Tensor  # [rows, num, steps] the first path that has this node
    weights: torch.Tensor  # [rows, num, steps] of all paths through this node


def join_paths(found: FoundPaths) -> PathTree:
    """The tree of all paths. The weight of a node is the sum over all paths that begin with it."""
    paths = found.paths
    is_path = (found.weights > 0)[:, None, :, None]  # others may begin like one by chance
    same = ((paths[:, :, None] == paths[:, None]) & is_path).cumprod(3)  # [rows, num, num, steps]
    weights = (same * found.weights[:, None, :, None]).sum(2)
    return PathTree(first=same.argmax(2), weights=weights)
