"""A folder whose quantised tensors do not fit is refused by the name of a tensor, never misread."""

import json
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ConfigError
from outrider.models.decoder_check import check_tensors
from outrider.models.model_config import read_config
from outrider.models.safetensors_reader import Checkpoint
from tests.support import packed_folders as forms
from tests.support.packed_forms import COMPRESSED, FORMS, gptq_config, integers
from tests.support.spoken import tiny_llama

PLACE = "model.layers.0.mlp.up_proj"
TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
SCALES = ("scale", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    tiny_llama(intermediate=64).save_pretrained(folder)
    return folder


@pytest.fixture
def folders(source, tmp_path):
    def write(form):
        packer, config = FORMS[form]
        packed, plain = tmp_path / "packed", tmp_path / "plain"
        forms.write_packed(source, forms.linear_by(packer), config, packed, plain)
        return packed, load_file(plain / "model.safetensors")

    return write


def shapes_of(part):
    """Every wrong shape that a file can have."""
    yield "with another axis", part[None]
    if not part.ndim:
        yield "of two numbers", part.repeat(2)
        return
    yield "empty", part[:0]
    for dim in range(part.ndim):
        size = part.shape[dim]
        yield f"shorter along {dim}", part.narrow(dim, 0, size - 1)
        yield f"half along {dim}", part.narrow(dim, 0, size // 2)
        yield f"longer along {dim}", torch.cat([part, part.narrow(dim, 0, 1)], dim)
        yield f"twice along {dim}", torch.cat([part, part], dim)
    if part.ndim == 2 and part.shape[0] != part.shape[1]:
        yield "transposed", part.t()


def bad_numbers_of(suffix, part):
    """Scales that are no numbers."""
    if suffix not in (*SCALES, "scales"):
        return
    is_power = part.dtype in (torch.uint8, torch.float8_e8m0fnu)
    for number in (255,) if is_power else (torch.nan, torch.inf):
        changed = part.clone()
        if is_power:
            changed.view(torch.uint8).flatten()[0] = number
        elif part.dtype == torch.float8_e4m3fn:  # it has no infinity
            changed.view(torch.uint8).flatten()[0] = 0x7F
        else:
            changed.flatten()[0] = number
        yield f"with {number}", changed


def damages(tensors):
    """What is damaged, and the tensors of the folder with that damage."""
    for name in [each for each in tensors if each.startswith(PLACE + ".")]:
        part, suffix = tensors[name], name.removeprefix(PLACE + ".")
        yield f"{suffix} missing", {key: each for key, each in tensors.items() if key != name}
        as_types = ((f"as {dtype}", part.to(dtype)) for dtype in TYPES if dtype != part.dtype)
        for change in (*shapes_of(part), *as_types, *bad_numbers_of(suffix, part)):
            yield f"{suffix} {change[0]}", {**tensors, name: change[1].contiguous()}
    for name in (
        f"{PLACE}.surplus",
        f"{PLACE}.weight_scale_3",
        "model.norm.weight_scale",
        "model.norm.input_scale",
        "model.layers.9.self_attn.k_scale",
        "model.norm.k_scale",
        "model.layers.9.self_attn.q_scale",
    ):
        yield f"surplus {name}", tensors | {name: torch.ones(1)}


def numbers_of(folder):
    """Every weight of a folder, checked as the loader checks it."""
    with Checkpoint(folder) as checkpoint:
        names = check_tensors(checkpoint, read_config(folder))
        return {name: checkpoint.read(name).clone() for name in names}


def set_config(folder, config):
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(fields))


def fault_of(folder, right):
    """What is wrong with how a folder is read: nothing if it is right or refused by name."""
    try:
        found = numbers_of(folder)
    except ConfigError as error:
        text = str(error)
        is_named = re.search(r"model\.(layers\.\d|norm)\.", text) is not None
        return "" if is_named and "\n" not in text else f"names no tensor: {text}"
    differ = [
        name for name in right if not torch.allclose(found[name], right[name], rtol=2e-2, atol=1e-6)
    ]
    return f"loads wrong numbers of {differ}" if differ else ""


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_every_damage_is_refused_by_name_or_changes_no_number(folders, form):
    packed, right = folders(form)
    tensors = load_file(packed / "model.safetensors")
    faults, num = {}, 0
    for damage, changed in damages(tensors):
        save_file(changed, packed / "model.safetensors")
        fault, num = fault_of(packed, right), num + 1
        if fault:
            faults[damage] = fault
    assert not faults
    assert num > 30


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_scales_that_are_no_numbers_are_refused(folders, form):
    packed, _ = folders(form)
    tensors = load_file(packed / "model.safetensors")
    for name in [each for each in tensors if each.startswith(PLACE + ".")]:
        suffix = name.removeprefix(PLACE + ".")
        for _, changed in bad_numbers_of(suffix, tensors[name]):
            save_file({**tensors, name: changed}, packed / "model.safetensors")
            with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
                numbers_of(packed)


# A zero point of GPTQ v1 is one less than that of v2, and both can have any value. Only `sym` in
# config.json says what it must be.
ALIKE = {("GPTQ", "GPTQ v2"), ("GPTQ v2", "GPTQ"), ("GPTQ symmetric", "GPTQ v2")}


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_the_config_of_another_form_is_refused_or_changes_no_number(folders, form):
    packed, right = folders(form)
    faults = {}
    for other, (_, config) in FORMS.items():
        set_config(packed, config)
        fault = fault_of(packed, right)
        if fault and (form, other) not in ALIKE:
            faults[other] = fault
    assert not faults


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_quantised_tensors_without_a_config_are_refused(folders, form):
    packed, _ = folders(form)
    set_config(packed, None)
    with pytest.raises(ConfigError, match=r"layers\.\d\..* and config\.json has no quantization"):
        numbers_of(packed)


def test_zero_points_of_another_version_are_refused_where_the_weights_are_symmetric(folders):
    packed, _ = folders("GPTQ symmetric")
    set_config(packed, gptq_config(sym=True, checkpoint_format="gptq_v2"))
    with pytest.raises(ConfigError, match=r"qzeros holds zero points besides 8, .* says sym"):
        numbers_of(packed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": 8}, "up_proj|qweight"),
        ({"group_size": 16}, r"scales has 8 groups of 64 inputs instead of 4: .* groups of 16"),
        ({"group_size": -1}, "scales has 8 groups of 64 inputs instead of 1"),
    ],
)
def test_other_sizes_than_config_says_are_refused(folders, changes, reason):
    packed, _ = folders("GPTQ")
    set_config(packed, gptq_config(**changes))
    with pytest.raises(ConfigError, match=reason):
        numbers_of(packed)


def test_groups_of_two_widths_are_read_by_their_words(source, tmp_path):
    """compressed-tensors of mixed precision: 4 bits in some modules, 8 in others."""
    four, eight = (partial(forms.words_of_compressed_tensors, bits=bits) for bits in (4, 8))
    weights = [
        integers(bits=bits)["config_groups"]["group_0"] | {"format": "pack-quantized"}
        for bits in (4, 8)
    ]
    config = COMPRESSED | {
        "format": "mixed-precision",
        "config_groups": {"attention": weights[0], "mlp": weights[1]},
    }

    def packer_of(name):
        if not name.endswith("proj.weight"):
            return None
        return four if "self_attn" in name else eight

    forms.write_packed(source, packer_of, config, tmp_path / "packed", tmp_path / "plain")
    right = load_file(tmp_path / "plain" / "model.safetensors")
    assert not fault_of(tmp_path / "packed", right)
    set_config(tmp_path / "packed", integers(bits=4))
    with pytest.raises(ConfigError, match=r"mlp.* has the shape .* instead of"):
        numbers_of(tmp_path / "packed")
