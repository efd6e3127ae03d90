"""The tensors of a model folder, by name, read one at a time from its safetensors files."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch
from safetensors import SafetensorError

from outrider.config.engine_config import Quantization
from outrider.errors import ConfigError
from outrider.hub.model_folder import pick_files, read_weight_map
from outrider.models.finite_weights import is_finite, warn_of_non_finite
from outrider.models.mapped_file import MappedFile
from outrider.models.quantised.expert_blocks import find_expert_blocks
from outrider.models.quantised.find_packed import UNUSED, PackedWeight, find_packed
from outrider.models.quantised.packed_weights import Parts
from outrider.models.quantised.quantisation import Quantisation, read_quantisation
from outrider.models.quantised.quantise_at_load import Fp8Rows, is_projection
from outrider.models.quantised.read_cut import read_cut
from outrider.models.quantised.stored_kv_scales import SUFFIXES
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.models.text_model_fields import FLAT, Nesting
from outrider.ops.compiled.find_blocks import has_blocks
from outrider.ops.linear.any_weight import AnyWeight, widened
from outrider.ops.linear.quantised_weight import QuantisedWeight

T = TypeVar("T")

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
_INTEGERS = ("I32", "I64")
_MOST_RESIDENT = 32 << 20  # bytes of the files; a few tensors, which are read together
_NUM_NAMED = 5  # tensors that an error message lists
_NUM_SEARCHED = 7  # projections of a layer: GGUF blocks need not be in all of them


class Checkpoint:
    """Owns the open files. A tensor is read when `read` is called.

    Names are ours; only the files and error messages have the stored names. Tensors that were read
    are views of the files. The files are not resident as a whole, or loading would need the memory
    of a second model. A quantised weight is read as the numbers that it stands for; the tensors
    that it is stored in have no names here.
    """

    def __init__(
        self,
        folder: Path,
        nesting: Nesting = FLAT,
        quantization: Quantization = "none",  # of projections that are stored as floats
    ) -> None:
        self._folder = folder
        self._quantization = quantization
        self._nesting = nesting
        self._shards: dict[str, MappedFile] = {}  # by tensor name
        self._packed: dict[str, PackedWeight] = {}  # by the name of the weight
        self._names: set[str] = set()  # that can be read
        self._resident_bytes = 0  # of tensors that were read since the last release
        self._non_finite: set[str] = set()  # stored names of tensors that were read
        self.is_partial = False  # the folder has other parts, which are not loaded

    def __enter__(self) -> Self:
        stored = self._open_shards()
        nesting = self._nesting = self._nesting.as_found(stored)
        own = [name for name in stored if not name.startswith(nesting.others)]
        self._refuse("has unexpected", filter(nesting.is_stray, own))
        self._shards = {nesting.our_name(name): stored[name] for name in own}
        self.is_partial = len(own) < len(stored)
        self._find_packed()
        return self

    def _find_packed(self) -> None:
        """Replace the tensors of every quantised weight by one name."""
        quantisation = read_quantisation(self._folder)
        try:
            modules = find_packed(self._shards, self._type, quantisation)
            experts = find_expert_blocks(self._shards, self._shape)
        except ConfigError as error:
            raise ConfigError(f"{self._folder}: {error}") from error
        self._packed = {f"{module}.weight": packed for module, packed in modules.items()}
        self._packed |= experts
        if self._quantization != "none":
            self._packed = self._quantised_at_load(quantisation)
        holders = [*modules.items(), *((each.module, each) for each in experts.values())]
        parts = {f"{module}.{suffix}" for module, each in holders for suffix in each.suffixes}
        self._names = (self._shards.keys() - parts) | self._packed.keys()
        if quantisation.method:
            self._names = {name for name in self._names if name.rpartition(".")[2] not in UNUSED}

    def _quantised_at_load(self, quantisation: Quantisation) -> dict[str, PackedWeight]:
        """Every projection, by its name. Refuses a folder whose weights are quantised already."""
        flag = f"--quantization {self._quantization}"
        shapes = {name: self._shape(name) for name in self._shards}
        if self._packed or quantisation.method:
            raise ConfigError(
                f"{self._folder} is quantised already ({quantisation.method or 'by its tensors'}), "
                f"and {flag} is for weights in bfloat16, float16 or float32; leave it out"
            )
        if stacked := [name for name in shapes if len(shapes[name]) == 3 and ".experts" in name]:
            raise ConfigError(
                f"{self._folder} stores all experts of a layer in one tensor ({min(stacked)}), "
                f"which {flag} does not quantise; leave it out"
            )
        found = [name for name in shapes if is_projection(name) and self._type(name) in _FLOATS]
        if any(has_blocks(self._view(name)) for name in sorted(found)[:_NUM_SEARCHED]):
            raise ConfigError(
                f"{self._folder} holds the numbers of GGUF blocks, which are quantised already; "
                f"leave {flag} out"
            )
        return {name: PackedWeight(Fp8Rows(), ("weight",)) for name in found}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()
        warn_of_non_finite(self._folder, sorted(self._non_finite))

    @property
    def names(self) -> Iterable[str]:
        """The names of all stored tensors."""
        return self._names

    def check(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        ignored: Iterable[str] = (),
        integers: Collection[str] = (),
        among: Callable[[str], bool] = lambda _: True,  # whether a stored name is checked
    ) -> None:
        """Refuse a folder that does not have exactly these tensors, besides the ignored ones.

        Tensors in `integers` must be integers, all others floating point.
        """
        stored = {name for name in self._names if not name.endswith(tuple(ignored))}
        stored = {name for name in stored if among(name)}
        stored -= {name for name in stored - shapes.keys() if self._is_zero_bias(name)}
        spelled = self._nesting.stored_name
        self._refuse("lacks", map(spelled, shapes.keys() - stored))
        self._refuse("has unexpected", map(spelled, stored - shapes.keys()))
        found = {name: self._shape(name) for name in sorted(shapes)}
        self._refuse(
            "has mis-shaped",
            (
                f"{spelled(name)} {list(shape)} instead of {list(shapes[name])}"
                for name, shape in found.items()
                if shape != shapes[name]
            ),
        )
        dtypes = {name: self._type(name) for name in sorted(shapes)}
        self._refuse(
            "has quantised",
            (
                f"{spelled(name)} as {dtype}"
                for name, dtype in dtypes.items()
                if dtype not in (_INTEGERS if name in integers else _FLOATS)
            ),
        )

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """One tensor or a part of it, as stored, on the CPU.

        It may be a view of its file: do not write to it.
        """
        if self._resident_bytes > _MOST_RESIDENT:
            self._release()
        tensor = self._widened(name, cut) if name in self._packed else cut.of(self._view(name))
        self._warn_unless_finite(name, tensor)
        return tensor

    def kv_scales(self) -> dict[str, torch.Tensor]:
        """All stored scales of keys and values, by name. They are not among `names`."""
        names = [name for name in self._shards if name.rpartition(".")[2] in SUFFIXES]
        return {name: self._view(name).clone() for name in names if name not in self._names}

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        """One weight or a part of it: a quantised one in its codes, others as by `read`."""
        if name not in self._packed:
            return self.read(name, cut)
        if self._resident_bytes > _MOST_RESIDENT:
            self._release()
        form = self._packed[name].form
        weight = self._explained(name, lambda parts: read_cut(form, parts, cut))
        self._warn_unless_finite(name, weight)
        return weight

    def _warn_unless_finite(self, name: str, weight: AnyWeight) -> None:
        """Remember a weight that is not finite, for the log line at the end."""
        is_number = weight.is_finite() if isinstance(weight, QuantisedWeight) else is_finite(weight)
        if not is_number:
            self._non_finite.add(self._nesting.stored_name(name))

    def _widened(self, name: str, cut: Cut) -> torch.Tensor:
        """The numbers of a quantised weight, or of a part of it, in float32."""
        form = self._packed[name].form
        return self._explained(name, lambda parts: widened(read_cut(form, parts, cut)))

    def _explained(self, name: str, read: Callable[[Parts], T]) -> T:
        """What `read` finds in the parts of a quantised weight; an error names the weight."""
        try:
            return read(self._parts(name))
        except ConfigError as error:
            spelled = self._nesting.stored_name(name)
            raise ConfigError(
                f"{self._folder}: {spelled} is damaged: {error}; download the model again"
            ) from error

    def _parts(self, name: str) -> dict[str, torch.Tensor]:
        """The stored tensors of a quantised weight, by suffix."""
        packed = self._packed[name]
        module = packed.module or name.removesuffix(".weight")
        return {suffix: packed.pick(self._view(f"{module}.{suffix}")) for suffix in packed.suffixes}

    def _view(self, name: str) -> torch.Tensor:
        tensor = self._shards[name].view(self._nesting.stored_name(name))
        self._resident_bytes += tensor.nbytes
        return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self._packed:
            return self._explained(name, self._packed[name].form.shape)
        return self._shards[name].shape(self._nesting.stored_name(name))

    def _is_zero_bias(self, name: str) -> bool:
        """Whether a tensor is a bias that only an exporter of quantised weights has added."""
        packed = self._packed.get(name.removesuffix(".bias") + ".weight")
        is_bias = name.endswith(".bias") and packed is not None and packed.may_have_zero_bias
        return is_bias and not self._view(name).any()

    def _type(self, name: str) -> str:
        if name in self._packed:
            return "F32"
        return self._shards[name].dtype_name(self._nesting.stored_name(name))

    def _release(self) -> None:
        """Drop the pages of what was read so far. Callers have copied most of it by now."""
        for shard in set(self._shards.values()):
            shard.release()
        self._resident_bytes = 0

    def _open_shards(self) -> dict[str, MappedFile]:
        """The open file of every stored tensor."""
        index = self._folder / _INDEX
        weight_map = read_weight_map(index) if index.is_file() else {}
        files = sorted(set(weight_map.values())) if index.is_file() else [_SINGLE]
        shards = {file: self._open_shard(self._folder / file) for file in files}
        holders: dict[str, list[str]] = {}
        for file, shard in shards.items():
            for name in shard.names:
                holders.setdefault(name, []).append(file)
        picked = pick_files(holders, weight_map, self._folder)
        return {name: shards[file] for name, file in picked.items()}

    def _open_shard(self, path: Path) -> MappedFile:
        try:
            return MappedFile(path)
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{path} is missing or damaged ({error}); download the model again"
            ) from error

    def _refuse(self, fault: str, tensors: Iterable[str]) -> None:
        names = sorted(tensors)
        if not names:
            return
        rest = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
        raise ConfigError(
            f"{self._folder} {fault} tensors ({len(names)}): {', '.join(names[:_NUM_NAMED])}{rest};"
            " use weights that belong to its config.json"
        )
