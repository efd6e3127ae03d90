"""Which draft modules a model folder holds. The loader refuses what this refuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields
from outrider.models.decoder_tensors import block_shapes
from outrider.models.expert_tensors import are_stacked
from outrider.models.model_config import ModelConfig, text_fields
from outrider.models.mtp.module_tables import ModuleTable
from outrider.models.safetensors_reader import Checkpoint

Shape = tuple[int, ...]

_IGNORED = ("rotary_emb.inv_freq",)
_FIX = "use the model's own weights, or another --draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModules:
    """The modules of a folder: complete, and every tensor of the right shape."""

    table: ModuleTable
    num: int
    are_experts_stacked: bool
    own: tuple[str, ...]  # embeddings and heads that they store for themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    """What a folder's modules are. They load exactly when there are no problems."""

    num: int
    facts: tuple[tuple[str, str], ...]  # label and value, for people
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def inspect_modules(folder: Path, config: ModelConfig) -> ModuleReport:
    """The report on a model's modules; bad ones are reported, never raised."""
    try:
        with Checkpoint(folder, config.family.nesting) as checkpoint:
            found = find_modules(folder, config, checkpoint)
    except ConfigError as error:
        return ModuleReport(num=0, facts=(), problems=(str(error),), notes=())
    repeated = "one module was trained for one step; it is repeated for further ones"
    return ModuleReport(
        num=found.num,
        facts=tuple(_facts(config, found)),
        problems=(),
        notes=(repeated,) if found.num == 1 else (),
    )


def find_modules(folder: Path, config: ModelConfig, checkpoint: Checkpoint) -> FoundModules:
    """The modules that an open folder holds; refuses any that are not there as announced."""
    table = config.family.modules
    if not isinstance(table, ModuleTable):
        raise ConfigError(
            f"--draft mtp needs draft modules inside the model, and {config.family.name} has none; "
            "use another --draft"
        )
    stored = [name for name in checkpoint.names if table.owns(name, config.num_layers)]
    fields = text_fields(read_fields(folder))
    num = _number(folder, fields, table, _stored_blocks(stored, table, config))
    optional = [f"{name}.weight" for name in (table.names.embedding, table.names.head)]
    own = tuple(name for name in stored if name.endswith(tuple(optional)))
    found = FoundModules(table=table, num=num, are_experts_stacked=are_stacked(stored), own=own)
    checkpoint.check(
        module_shapes(config, found),
        ignored=_IGNORED,
        among=lambda name: table.owns(name, config.num_layers),
    )
    return found


def count_modules(folder: Path, config: ModelConfig) -> int:
    """How many modules a folder holds; refuses what `find_modules` does."""
    with Checkpoint(folder, config.family.nesting) as checkpoint:
        return find_modules(folder, config, checkpoint).num


def module_shapes(config: ModelConfig, found: FoundModules) -> dict[str, Shape]:
    """Name and shape of every tensor of the modules."""
    shapes: dict[str, Shape] = {}
    for index in range(found.num):
        prefix, block = found.table.places(index, config.num_layers)
        shapes |= {prefix + name: shape for name, shape in _own_shapes(config, found.table)}
        shapes |= {block + name: shape for name, shape in _block_shapes(config, found)}
    table_shape = (config.vocab_size, config.block.hidden)
    return shapes | dict.fromkeys(found.own, table_shape)


def stored_name(table: ModuleTable, name: str) -> str:
    """What the family calls a tensor of a block that we call so."""
    for ours, theirs in table.renamed:
        name = name.replace(ours, theirs)
    return name


def _own_shapes(config: ModelConfig, table: ModuleTable) -> Iterator[tuple[str, Shape]]:
    hidden, names = config.block.hidden, table.names
    yield f"{names.join}.weight", (hidden, 2 * hidden)
    for norm in (names.token_norm, names.state_norm, names.output_norm):
        yield f"{norm}.weight", (hidden,)


def _block_shapes(config: ModelConfig, found: FoundModules) -> Iterator[tuple[str, Shape]]:
    """A module's block is one like the target's last that attends, but never dense by its place."""
    last, are_stacked = config.attending[-1], found.are_experts_stacked
    shapes = block_shapes(config.of_modules, layer=last, are_experts_stacked=are_stacked)
    for name, shape in shapes.items():
        yield stored_name(found.table, name), shape


def _stored_blocks(stored: list[str], table: ModuleTable, config: ModelConfig) -> int:
    """Modules of which some tensor is stored."""
    num = 0
    while any(name.startswith(table.places(num, config.num_layers)[1]) for name in stored):
        num += 1
    return num


def _number(folder: Path, fields: dict[str, Any], table: ModuleTable, num_stored: int) -> int:
    """As many modules as config.json says; those that are stored if it says nothing."""
    said = {key: fields[key] for key in table.counts if fields.get(key) is not None}
    for key, value in said.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{folder}: config.json needs a number in {key}, got {value}; fix it")
    if not num_stored and any(said.values()):
        key, value = next((key, value) for key, value in said.items() if value)
        raise ConfigError(
            f"{folder}: config.json says {key} {value}, but the weights hold no draft module "
            f"({table.stored_as}): quantised and converted exports often drop them; {_FIX}"
        )
    if not num_stored:
        raise ConfigError(f"{folder} holds no draft modules ({table.stored_as}); {_FIX}")
    return max((value for value in said.values() if value), default=num_stored)


def _facts(config: ModelConfig, found: FoundModules) -> Iterator[tuple[str, str]]:
    rules, names = found.table.rules, found.table.names
    first, last = (found.table.places(i, config.num_layers)[1] for i in (0, found.num - 1))
    yield "modules", f"{found.num} of {config.family.name}"
    yield "tensors", f"{first}*" + (f" to {last}*" if found.num > 1 else "")
    yield "captures", "the final state, normalised"
    yield "joins", "state, then token" if rules.is_state_first else "token, then state"
    of = "the module before it" if rules.is_chained else "the target"
    yield "state", f"{config.block.hidden} wide" + (f", of {of}" if found.num > 1 else "")
    yield (
        "norms",
        "stored from zero" if config.family.has_zero_centred_norms else "stored as they multiply",
    )
    for label, name in (("embedding", names.embedding), ("head", names.head)):
        is_own = any(stored.endswith(f"{name}.weight") for stored in found.own)
        yield label, "stored with the modules" if is_own else "the target's"
