"""Mutation tests: each re-injects a mistake of loaders, and the numbers of a folder show it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import packed_folders as forms
from support.packed_forms import FORMS
from support.split_folder import split_folder
from support.spoken import tiny_llama

from outrider.models import safetensors_reader
from outrider.models.quantised import scaled_form, unpack_bits, word_forms
from outrider.models.quantised.nibble_form import NibbleForm
from outrider.models.quantised.scaled_form import ScaledForm
from outrider.models.safetensors_reader import Checkpoint
from outrider.ops.linear import quantised_weight

Patch = Callable[[pytest.MonkeyPatch], None]
NAME = "model.layers.0.self_attn.q_proj.weight"  # square: a transposed grid has the right shape


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A packed folder in several files, and the numbers that it stores; by form."""
    root, written = tmp_path_factory.mktemp("mutants"), {}
    tiny_llama(intermediate=64).save_pretrained(root / "source")

    def of(form: str) -> tuple[Path, torch.Tensor]:
        if form not in written:
            packer, config = FORMS[form]
            packed, plain = root / form / "packed", root / form / "plain"
            forms.write_packed(root / "source", forms.linear_by(packer), config, packed, plain)
            split_folder(packed, 3)
            _leave_old_scales(packed)
            written[form] = packed, load_file(plain / "model.safetensors")[NAME]
        return written[form]

    return of


def _leave_old_scales(folder: Path) -> None:
    """Every file also has all scales, as another export left them there. The index names others."""
    files = {path: load_file(path) for path in folder.glob("*.safetensors")}
    scales = {
        name: each * 2 if each.dtype.itemsize > 1 else (each.view(torch.uint8) ^ 1).view(each.dtype)
        for tensors in files.values()
        for name, each in tensors.items()
        if name.endswith(("scale", "scales", "scale_inv"))
    }
    for path, tensors in files.items():
        save_file({k: v.contiguous() for k, v in (scales | tensors).items()}, path)


def transposed_scales(patch: pytest.MonkeyPatch) -> None:
    original = ScaledForm._rows_of_scales
    patch.setattr(
        ScaledForm,
        "_rows_of_scales",
        lambda self, scale, shape: original(self, scale.t() if scale.ndim == 2 else scale, shape),
    )


def swapped_nibbles(patch: pytest.MonkeyPatch) -> None:
    original = quantised_weight.unpack_nibbles
    for module in (quantised_weight, unpack_bits):
        patch.setattr(
            module,
            "unpack_nibbles",
            lambda stored, block: original(stored << 4 | stored >> 4, block),
        )


def next_zeros(patch: pytest.MonkeyPatch) -> None:
    words, rows = word_forms.grouped_integers, scaled_form.quantised_weight

    def of_words(codes, inputs, scales, zeros, **others):
        return words(codes, inputs, scales, zeros + 1, **others)

    def of_rows(kind, codes, scales, *, zeros, **others):
        return rows(kind, codes, scales, zeros=zeros + 1, **others)

    patch.setattr(word_forms, "grouped_integers", of_words)
    patch.setattr(scaled_form, "quantised_weight", of_rows)


def scales_of_another_file(patch: pytest.MonkeyPatch) -> None:
    """The index is not asked."""
    patch.setattr(
        safetensors_reader,
        "pick_files",
        lambda holders, weight_map, _: {
            name: next((each for each in files if each != weight_map[name]), files[0])
            for name, files in holders.items()
        },
    )


def no_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(word_forms, "_order", lambda *_, **__: None)


def inverse_factor(patch: pytest.MonkeyPatch) -> None:
    original = NibbleForm._factor
    patch.setattr(NibbleForm, "_factor", lambda self, stored: 1 / original(self, stored))


_BLOCKS = ("fp8 blocks", "fp8 blocks of V4", "fp8 blocks of compressed-tensors")
_NIBBLES = ("int4 groups", "GPTQ", "AWQ", "NVFP4", "NVFP4 of compressed-tensors", "MXFP4")
MUTANTS: dict[Patch, tuple[str, ...]] = {
    transposed_scales: _BLOCKS,
    swapped_nibbles: (*_NIBBLES, "MXFP4 of V4", "int4 rows"),
    next_zeros: ("int4 groups, zeros, order", "GPTQ", "GPTQ v2", "AWQ", "int8 rows, zeros"),
    scales_of_another_file: tuple(FORMS),
    no_order: ("GPTQ", "GPTQ symmetric", "int4 groups, zeros, order"),
    inverse_factor: ("NVFP4", "NVFP4 of compressed-tensors"),
}


def has_the_numbers(folder: Path, right: torch.Tensor) -> bool:
    """The comparison of `test_every_stored_number_is_read`."""
    with Checkpoint(folder) as found:
        return torch.equal(found.read(NAME), right)


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_the_loader_reads_the_numbers(folders, form):
    assert has_the_numbers(*folders(form))


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("mutant", "form"), [(each, form) for each, forms in MUTANTS.items() for form in forms]
)
def test_a_loader_with_a_mistake_is_noticed(folders, monkeypatch, mutant, form):
    folder, right = folders(form)
    mutant(monkeypatch)
    assert not has_the_numbers(folder, right)
