"""Finds and checks the draft modules in a model folder. The loader uses the same checks."""

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

_MOST_MODULES = 100  # names and shapes of all modules are built before tensors are read
_IGNORED = ("rotary_emb.inv_freq",)
_FIX = "use the model's own weights, or another --draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModules:
    """The modules of a folder. All tensors are present and have the right shape."""

    table: ModuleTable
    num: int
    are_experts_stacked: bool
    own: tuple[str, ...]  # stored embeddings and heads of the modules


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    """The modules of a folder. They can be loaded if there are no problems."""

    num: int
    facts: tuple[tuple[str, str], ...]  # label and value, for display
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def inspect_modules(folder: Path, config: ModelConfig) -> ModuleReport:
    """The report on a model's modules. Bad modules give problems, not an exception."""
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
    """The modules in an open folder. Refuses missing or mis-shaped tensors."""
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
    """How many modules a folder holds, checked by `find_modules`."""
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
    """The stored name of a layer tensor, from our name."""
    for ours, theirs in table.renamed:
        name = name.replace(ours, theirs)
    return name


def _own_shapes(config: ModelConfig, table: ModuleTable) -> Iterator[tuple[str, Shape]]:
    hidden, names = config.block.hidden, table.names
    yield f"{names.join}.weight", (hidden, 2 * hidden)
    for norm in (names.token_norm, names.state_norm, names.output_norm):
        yield f"{norm}.weight", (hidden,)


def _block_shapes(config: ModelConfig, found: FoundModules) -> Iterator[tuple[str, Shape]]:
    """The layer of a module: as the target's last attention layer, with `of_modules`."""
    last, are_stacked = config.attending[-1], found.are_experts_stacked
    shapes = block_shapes(config.of_modules, layer=last, are_experts_stacked=are_stacked)
    for name, shape in shapes.items():
        yield stored_name(found.table, name), shape


def _stored_blocks(stored: list[str], table: ModuleTable, config: ModelConfig) -> int:
    """How many modules have at least one stored tensor."""
    num = 0
    while any(name.startswith(table.places(num, config.num_layers)[1]) for name in stored):
        num += 1
    return num


def _number(folder: Path, fields: dict[str, Any], table: ModuleTable, num_stored: int) -> int:
    """The number of modules: by config.json, or by the stored tensors if it has no count."""
    counts = {key: fields[key] for key in table.counts if fields.get(key) is not None}
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{folder}: config.json needs a number in {key}, got {value}; fix it")
        if value > _MOST_MODULES:
            raise ConfigError(
                f"{folder}: config.json has a {key} above {_MOST_MODULES}, which no model has; "
                "fix the field"
            )
    if not num_stored and any(counts.values()):
        key, value = next((key, value) for key, value in counts.items() if value)
        raise ConfigError(
            f"{folder}: config.json says {key} {value}, but the weights hold no draft module "
            f"({table.stored_as}): quantised and converted exports often drop them; {_FIX}"
        )
    if not num_stored:
        raise ConfigError(f"{folder} holds no draft modules ({table.stored_as}); {_FIX}")
    return max((value for value in counts.values() if value), default=num_stored)


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
