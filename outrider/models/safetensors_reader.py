"""The tensors of a model folder, by name, read one at a time from its safetensors files."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch
from safetensors import SafetensorError

from outrider.config.engine_config import Quantization
from outrider.errors import ConfigError
from outrider.hub.model_folder import WEIGHTS_INDEX, pick_files, read_weight_map, weight_files
from outrider.models.finite_weights import are_scales, is_finite, warn_of_non_finite
from outrider.models.mapped_file import MOST_RESIDENT, MappedFile
from outrider.models.quantised.expert_blocks import find_expert_blocks
from outrider.models.quantised.expert_stacks import StackAxes, find_scaled_stacks
from outrider.models.quantised.find_packed import PackedWeight, find_packed
from outrider.models.quantised.gguf_form import find_gguf_blocks
from outrider.models.quantised.packed_form import PackedForm, Parts
from outrider.models.quantised.quantisation import NOT_QUANTISED
from outrider.models.quantised.quantisation_files import read_quantisation
from outrider.models.quantised.quantise_at_load import is_projection, weights_at_load
from outrider.models.quantised.read_cut import is_kept, read_cut, warn_of_widened, widen_cut
from outrider.models.quantised.stored_blocks import has_stored_blocks, open_blocks
from outrider.models.quantised.unused_scales import scales_of_activations, scales_of_keys
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.models.text_model_fields import FLAT, Nesting
from outrider.ops.compiled.find_blocks import has_blocks
from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.quantised_linear import has_kernels

T = TypeVar("T")
Weight = TypeVar("Weight", torch.Tensor, AnyWeight)

_FLOATS = ("F32", "F16", "BF16")
_INTEGERS = ("I32", "I64")
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
    ) -> None:
        self._folder = folder
        self._nesting = nesting
        self._shards: dict[str, MappedFile] = {}  # by tensor name
        self._packed: dict[str, PackedWeight] = {}  # by the name of the weight
        self._coded: dict[str, PackedWeight] = {}  # GGUF blocks, by the name of the weight
        self._has_codes = False  # see `use_codes`
        self._names: set[str] = set()  # that can be read
        self._resident_bytes = 0  # of tensors that were read since the last release
        self._non_finite: set[str] = set()  # stored names of tensors that were read
        self._widened: set[str] = set()  # names of quantised weights of which a part was read
        self._kv_scales: set[str] = set()  # names of scales of keys and values
        self.is_partial = False  # the folder has other parts, which are not loaded
        self.quantisation = NOT_QUANTISED  # what the folder says
        self.unused_scales: set[str] = set()  # stored names of scales of activations

    def __enter__(self) -> Self:
        stored = self._open_shards()
        nesting = self._nesting = self._nesting.as_found(stored)
        own = {name: stored[name] for name in stored if not name.startswith(nesting.others)}
        self._refuse("has unexpected", filter(nesting.is_stray, own))
        self._shards = {nesting.our_name(name): shard for name, shard in own.items()}
        self.is_partial = len(own) < len(stored)
        self._find_packed(own)
        self._find_blocks()
        return self

    def _find_packed(self, stored: Mapping[str, MappedFile]) -> None:
        """Replace the tensors of every quantised weight by one name."""

        def type_of(name: str) -> str:
            return stored[name].dtype_name(name)

        def shape_of(name: str) -> tuple[int, ...]:
            return stored[name].shape(name)

        self.quantisation = quantisation = read_quantisation(self._folder)
        try:
            found = find_packed(stored, type_of, quantisation)
            found |= find_expert_blocks(stored, type_of, shape_of, quantisation)
            found |= find_scaled_stacks(stored, type_of, shape_of, quantisation)
        except ConfigError as error:
            raise ConfigError(f"{self._folder}: {error}") from error
        self._use(found)
        if quantisation.method:
            modules = {each.module for each in found.values()}
            ours = self._nesting.our_name
            self.unused_scales = scales_of_activations(stored, modules)
            self._kv_scales = {ours(name) for name in scales_of_keys(stored)}
            self._names -= self._kv_scales | {ours(name) for name in self.unused_scales}

    def _find_blocks(self) -> None:
        """Read weights from the blocks of a GGUF file if the folder has no floats of them."""
        if not has_stored_blocks(self._folder):
            return
        blocks = open_blocks(self._folder)
        found = find_gguf_blocks(blocks.names)
        self._shards |= dict.fromkeys(blocks.names, blocks)
        self._packed |= {name: each for name, each in found.items() if name not in self._names}
        self._names |= self._packed.keys()
        self._coded = found

    def use_codes(self, device: torch.device) -> None:
        """Let `read_weight` give the codes of GGUF blocks, also where there are floats of them.

        Only on a device that has kernels for codes.
        """
        self._has_codes = has_kernels(device)

    def _use(self, packed: Mapping[str, PackedWeight]) -> None:
        """Read these weights, by stored name, instead of the tensors that they are stored in."""
        ours = self._nesting.our_name
        self._packed = {ours(name): each for name, each in packed.items()}
        parts = {ours(name) for each in packed.values() for name in each.stored}
        self._names = (self._shards.keys() - parts) | self._packed.keys()

    def quantise(self, quantization: Quantization, axes: StackAxes) -> None:
        """Read every projection that is stored as floats in codes.

        `axes` are those of experts in one tensor. Refuses a folder that is quantised already.
        """
        if quantization == "none":
            return
        flag = f"--quantization {quantization}"
        method = self.quantisation.method or ("by its tensors" if self._packed else "")
        if method:
            raise ConfigError(
                f"{self._folder} is quantised already ({method}), and {flag} is for weights in "
                "bfloat16, float16 or float32; leave it out"
            )
        shapes = {
            self._nesting.stored_name(name): self._shape(name)
            for name in self._names
            if self._type(name) in _FLOATS
        }
        projections = sorted(name for name in shapes if is_projection(name))[:_NUM_SEARCHED]
        searched = [self._view(self._nesting.our_name(name)) for name in projections]
        if any(map(has_blocks, searched)) or has_stored_blocks(self._folder):
            raise ConfigError(
                f"{self._folder} holds the numbers of GGUF blocks, which are quantised already; "
                f"leave {flag} out"
            )
        self._use(weights_at_load(shapes, axes))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()
        warn_of_non_finite(self._folder, sorted(self._non_finite))
        warn_of_widened(self._folder, self._widened)

    @property
    def names(self) -> Iterable[str]:
        """The names of all stored tensors."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a stored tensor."""
        return self._shape(name)

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
        if name in self._packed:
            return self._read_packed(name, self._packed[name], cut, widen_cut)
        self._release_if_full()
        tensor = cut.of(self._view(name))
        if not is_finite(tensor):
            self._non_finite.add(self._nesting.stored_name(name))
        return tensor

    def kv_scales(self) -> dict[str, torch.Tensor]:
        """All stored scales of keys and values, by name. They are not among `names`."""
        return {name: self._view(name).clone() for name in self._kv_scales}

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        """One weight or a part of it: a quantised one in its codes, others as by `read`."""
        packed = self._packed.get(name) or (self._coded.get(name) if self._has_codes else None)
        if packed is None:
            return self.read(name, cut)
        weight = self._read_packed(name, packed, cut, read_cut)
        if cut.ranges and not is_kept(weight):
            self._widened.add(self._nesting.stored_name(name))
        return weight

    def _read_packed(
        self,
        name: str,
        packed: PackedWeight,
        cut: Cut,
        read: Callable[[PackedForm, Parts, Cut], Weight],
    ) -> Weight:
        self._release_if_full()
        parts = self._parts(packed)
        weight = self._explained(packed, lambda: read(packed.form, parts, cut))
        if not is_finite(weight):
            self._refuse_bad_scales(packed, parts)
            self._non_finite.add(self._nesting.stored_name(name))
        return weight

    def _refuse_bad_scales(self, packed: PackedWeight, parts: Parts) -> None:
        """A scale that is no number makes all codes of its group useless."""
        bad = [suffix for suffix in packed.form.scales if not are_scales(parts[suffix])]
        self._refuse("has NaN or infinity in", (f"{packed.module}.{suffix}" for suffix in bad))

    def _explained(self, packed: PackedWeight, read: Callable[[], T]) -> T:
        """What `read` finds in the parts of a quantised weight; an error names a stored tensor."""
        try:
            return read()
        except ConfigError as error:
            raise ConfigError(
                f"{self._folder}: {packed.module}.{error}; download the model again, "
                "or use the config.json of these weights"
            ) from error

    def _parts(self, packed: PackedWeight) -> dict[str, torch.Tensor]:
        """The stored tensors of a quantised weight, by suffix. Refuses some that do not fit."""
        ours = self._nesting.our_name
        stored = zip(packed.suffixes, map(ours, packed.stored), strict=True)
        parts = {suffix: packed.pick(suffix, self._whole(each)) for suffix, each in stored}
        self._resident_bytes += sum(part.nbytes for part in parts.values())
        self._explained(packed, lambda: packed.form.check(parts))
        return parts

    def _release_if_full(self) -> None:
        if self._resident_bytes > MOST_RESIDENT:
            self._release()

    def _view(self, name: str) -> torch.Tensor:
        tensor = self._whole(name)
        self._resident_bytes += tensor.nbytes
        return tensor

    def _whole(self, name: str) -> torch.Tensor:
        """A stored tensor, of which only some numbers will be read."""
        return self._shards[name].view(self._nesting.stored_name(name))

    def _shape(self, name: str) -> tuple[int, ...]:
        if packed := self._packed.get(name):
            return packed.form.shape(self._parts(packed))
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
        index = self._folder / WEIGHTS_INDEX
        weight_map = read_weight_map(index) if index.is_file() else {}
        shards = {
            file: self._open_shard(self._folder / file) for file in weight_files(self._folder)
        }
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
