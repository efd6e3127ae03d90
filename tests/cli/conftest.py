"""Tiny models with a real tokenizer, for tests that act as users do."""

from support.user_fixtures import (
    draft_folder,
    foreign_folder,
    frontend,
    ids_only_folder,
    make_frontend,
    model_folder,
    tokenizer,
)

__all__ = [
    "draft_folder",
    "foreign_folder",
    "frontend",
    "ids_only_folder",
    "make_frontend",
    "model_folder",
    "tokenizer",
]
