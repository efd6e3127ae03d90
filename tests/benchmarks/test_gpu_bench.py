"""`python -m benchmarks decode`, `iteration` and `prefill` on a tiny body, and floors by hand."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support.trees import tree_of
from typer.testing import CliRunner

from benchmarks.__main__ import app, run
from benchmarks.dummy_models import dummy_decoder, dummy_head
from benchmarks.steps.body import find_body
from benchmarks.steps.breakdown import Kernel, class_of, summarise
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.free_drafter import fixed_tree
from benchmarks.steps.step_args import PROMPTS_A_STEP, Case, plan_work
from benchmarks.steps.step_floors import (
    DraftShape,
    held_bytes,
    iteration_passes,
    module_passes,
    prefill_flops,
    step_passes,
    total_s,
)
from benchmarks.steps.vllm_numbers import MeasuredModel, drafting_step, plain_step
from outrider.bench.offline.v4_bytes import v4_cache_bytes, v4_held_bytes, v4_step_bytes
from outrider.ops.compiled.attend_keys import attend_rows
from outrider.ops.compiled.catch_up_region import catch_up_rows
from outrider.ops.compiled.dense_product import dense_product
from outrider.ops.compiled.head_region import run_head
from outrider.ops.compiled.kernel_cache import name_of
from outrider.ops.compiled.layer_region import run_layers
from outrider.ops.compiled.norm_rows import norm_rows
from outrider.ops.compiled.tile_product import gated_product, projected_heads, tile_product
from outrider.runtime.build_runner import MAX_CHUNKS
from outrider.wire.draft_budget import Budget

TINY = ["--body", "tiny", "--dtype", "float32", "--device", "cpu"]
SHORT = ["--rows", "1,3", "--prompt", "5", "--tokens", "4"]

# tiny: hidden 64, intermediate 96, 4 layers, 4 heads and 2 key-value heads of 16, vocabulary 512
LAYER = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
MATRICES = 4 * LAYER + 512 * 64
NORMS = 9 * 64
KV_TOKEN = 2 * 2 * 16  # numbers of one token in one layer
# its head: draft vocabulary 128, three taps
HEAD_LAYER = 128 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96
HEAD_NORMS = 4 * 64


def measured(tmp_path, *flags):
    """What a command wrote, and what it showed."""
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, [*flags, "--json", str(target)])
    assert done.exit_code == 0, done.output
    return json.loads(target.read_text()), done.output


@pytest.mark.slow
def test_decode_times_every_case_beside_its_floor(tmp_path):
    found, shown = measured(tmp_path, "decode", *TINY, *SHORT, "--context", "64")
    (series,) = found["series"]
    points = series["points"]
    assert [(point["rows"], point["prompt"]) for point in points] == [
        (1, 5),
        (3, 5),
        (1, 43),
        (3, 43),
    ]
    (rates,) = found["setting"]["rates"]
    for point in points:
        assert len(point["steps_s"]) == 4
        assert point["emitted_per_row"] == 1.0
        assert point["tokens_per_s"] == pytest.approx(4 * point["rows"] / sum(point["steps_s"]))
        (floor,) = point["floors"]
        read = 4 * (MATRICES + NORMS + point["rows"] * point["context"] * 4 * KV_TOKEN)
        assert floor["step_s"] == pytest.approx(read / rates["bandwidth"], rel=0.01)
        assert floor["ratio"] == pytest.approx(point["step_s"] / floor["step_s"])
        assert point["peers"] == []
        assert point["memory_bytes"] > 0
    # One token comes with the prompt, 12 steps pass untimed, and 4 are timed.
    assert points[0]["context"] == 5 + 1 + 12 + 4 / 2
    assert "x floor" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.slow
def test_decode_times_deepseek_v4_with_blocks_and_experts(tmp_path):
    tiny = ["--body", "deepseek-v4-tiny", "--dtype", "float32", "--device", "cpu"]
    found, shown = measured(tmp_path, "decode", *tiny, *SHORT)
    (series,) = found["series"]
    assert {len(point["steps_s"]) for point in series["points"]} == {4}
    assert all(point["floors"][0]["step_s"] > 0 for point in series["points"])
    assert "deepseek-v4-tiny" in shown


@pytest.mark.slow
def test_prompts_of_deepseek_v4_can_be_pretended_and_its_layers_counted(tmp_path):
    tiny = ["--body", "deepseek-v4-tiny", "--dtype", "float32", "--device", "cpu"]
    flags = ["--layers", "3", "--pretend-prompts", "--rows", "2", "--prompt", "400"]
    found, _ = measured(tmp_path, "decode", *tiny, *flags, "--tokens", "4")
    assert found["setting"]["weights"]["cut_layers"] == 3
    assert found["series"][0]["points"][0]["context"] > 400


@pytest.mark.parametrize("layers", [0, 3])
def test_a_step_of_a_cut_deepseek_v4_is_its_layers(layers):
    """What a layer takes is a share of the whole step, so the head must be next to nothing."""
    body = find_body("deepseek-v4", layers=layers)
    head = body.config.vocab_size * body.config.hidden * 2
    assert body.is_cut
    assert head < 0.01 * v4_step_bytes(body.config, "bfloat16", tokens=8)


@pytest.mark.slow
def test_the_module_of_deepseek_v4_drafts_in_the_heads_place(tmp_path):
    tiny = ["--body", "deepseek-v4-tiny", "--dtype", "float32", "--device", "cpu"]
    flags = ["--modules", "1", "--draft-steps", "3", "--simulate-acceptance", "2.5"]
    found, shown = measured(tmp_path, "iteration", *tiny, *flags, *SHORT)
    assert "1 modules, steps 3" in shown
    point = found["series"][0]["points"][0]
    assert 1.0 < point["emitted_per_row"] <= 4.0
    config = find_body("deepseek-v4-tiny").config
    draft = DraftShape(vocab=512, steps=3, topk=1, nodes=4, emitted=2.5)
    passes = module_passes(config, "float32", draft, rows=1, context=30.0)
    assert len(passes) == 1 + 3 + 3
    assert passes[2].weight_bytes < passes[1].weight_bytes  # one token asks fewer experts


def test_a_prompt_longer_than_the_window_attends_to_the_window():
    config = find_body("mistral-7b", layers=1).config
    short, long = (prefill_flops(config, tokens=tokens) for tokens in (4096, 4096 + 100))
    layer = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
    assert long - short == 2 * 100 * layer + 100 * 4096 * 2 * 32 * 2 * 128


def test_the_floor_of_deepseek_v4_counts_asked_experts_and_chosen_entries():
    config = find_body("deepseek-v4").config
    expert = 3 * 4096 * 2048 * 2  # bytes in bfloat16
    one, many = (v4_step_bytes(config, "bfloat16", tokens=tokens) for tokens in (1, 1e6))
    assert many - one == pytest.approx(4 * (256 - 6) * expert, rel=1e-6)
    assert many < v4_held_bytes(config, "bfloat16")
    window, entry, key = 128 * 512, 512, 128
    sparse = 2 * (window + 512 * entry + 16384 * key)
    heavy, alone = window + 512 * entry, window
    read = v4_cache_bytes(config, "bfloat16", rows=3, context=65536)
    assert read == 3 * 2 * (sparse + heavy + alone)


@pytest.mark.slow
def test_iteration_emits_what_was_asked_beside_plain_steps_and_verification_alone(tmp_path):
    flags = ["--draft-steps", "3", "--topk", "2", "--nodes", "6", "--with-plain"]
    found, shown = measured(
        tmp_path, "iteration", *TINY, *SHORT, *flags, "--simulate-acceptance", "3.0"
    )
    drafted, plain, verify = found["series"]
    assert [point["emitted_per_row"] for point in drafted["points"]] == [3.0, 3.0]
    for series in (plain, verify):
        assert [point["emitted_per_row"] for point in series["points"]] == [1.0, 1.0]
    for ours, step in zip(drafted["points"], plain["points"], strict=True):
        assert ours["of_plain_step"] == [pytest.approx(ours["step_s"] / step["step_s"])]
    assert plain["points"][0]["of_plain_step"] == []
    assert len(verify["points"][0]["of_plain_step"]) == 1
    assert "verify of 6 nodes" in shown


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 3])
def test_modules_inside_the_target_draft_in_the_heads_place(tmp_path, num):
    flags = ["--modules", str(num), "--draft-steps", "3", "--simulate-acceptance", "2.5"]
    found, shown = measured(tmp_path, "iteration", *TINY, *SHORT, *flags, "--context", "0")
    (series,) = found["series"]
    assert [point["rows"] for point in series["points"]] == [1, 3]
    for point in series["points"]:
        assert point["emitted_per_row"] == pytest.approx(2.5, abs=0.3)
    assert f"{num} modules, steps 3" in shown


@pytest.mark.slow
def test_prefill_reports_its_share_of_the_matrix_rate(tmp_path):
    found, shown = measured(tmp_path, "prefill", *TINY, "--tokens", "40", "--breakdown")
    prefill = found["prefill"]
    (breakdown,) = prefill["breakdowns"]
    assert sum(share["step_s"] for share in breakdown["classes"]) > 0
    assert "prompt 40, whole prompt" in shown
    assert prefill["flops"] == prefill_flops(find_body("tiny").config, tokens=40)
    assert prefill["flops_per_s"] == pytest.approx(prefill["flops"] / prefill["prompt_s"])
    assert prefill["of_matrix_rate"] * prefill["matrix_rate"] == pytest.approx(
        prefill["flops_per_s"]
    )


@pytest.mark.slow
def test_breakdown_and_cold_start_come_with_the_series(tmp_path):
    flags = ["--rows", "2", "--prompt", "5", "--tokens", "2", "--context", "0"]
    found, shown = measured(tmp_path, "decode", *TINY, *flags, "--breakdown", "--cold-start")
    (series,) = found["series"]
    (breakdown,) = series["breakdowns"]
    shares = {share["name"]: share for share in breakdown["classes"]}
    # The 4 layers are one compiled region, with their products and attention. GEMM is the head.
    assert {name: shares[name]["runs"] for name in ("whole layers", "GEMM", "attention")} == {
        "whole layers": 1,
        "GEMM": 1,
        "attention": 0,
    }
    assert shares["whole layers"]["step_s"] > 0
    assert 0 <= breakdown["gap_s"] < breakdown["span_s"]
    (cold,) = series["cold_starts"]
    assert 0 < cold["assembled_s"] < cold["first_token_s"] < cold["second_token_s"]
    assert "gaps" in shown


@pytest.mark.slow
def test_real_weights_are_measured_in_place_of_a_body(tiny_folder, tmp_path):
    flags = ["--model", str(tiny_folder), "--dtype", "float32", "--device", "cpu"]
    found, _ = measured(tmp_path, "decode", *flags, *SHORT, "--context", "0")
    assert not found["setting"]["weights"]["is_dummy"]
    assert [point["rows"] for point in found["series"][0]["points"]] == [1, 3]


WRONG = [
    (["decode", "--body", "llama-9b"], "unknown body 'llama-9b'"),
    (["decode", "--body", "tiny", "--model", "x"], "give one of them"),
    (["decode", "--rows", "1,x"], "such as 1,8,32"),
    (["decode", "--rows", "0"], "such as 1,8,32"),
    (["decode", "--prompt", "0"], "--prompt"),
    (["decode", "--tokens", "1"], "--tokens"),
    (["decode", "--context", "150"], "--context 150 is too short"),
    (["decode", "--dtype", "int4"], "'int4'"),
    (["decode", "--dtype", "float32,int8"], "use one type"),
    (["iteration", "--body", "x"], "unknown body"),
    (["iteration", "--simulate-acceptance", "7"], "not between 1 and 6"),
    (["iteration", "--simulate-acceptance", "0.5"], "not between 1 and 6"),
    (["iteration", "--draft-steps", "0"], "--draft-steps must be between 1 and 63"),
    (["iteration", "--draft-steps", "64"], "--draft-steps must be between 1 and 63"),
    (["iteration", "--nodes", "65"], "--nodes must be between 1 and 64"),
    (["iteration", "--topk", "0"], "--topk must be between 1 and 64"),
    (["iteration", "--modules", "2", "--draft-steps", "3"], "--draft-steps 2 or less"),
    (["iteration", "--modules", "3", "--topk", "2"], "use --topk 1"),
    (["prefill", "--json", "/no/such/folder/x.json"], "--json"),
]


@pytest.mark.parametrize(("flags", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_flag_is_answered_with_one_line(flags, reason, capsys):
    assert run([*flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert reason in shown.err


LATE = [
    (["decode", *TINY, "--executor", "warp"], "executor 'warp'"),
    (["decode", *TINY, "--context", "8000"], "context is 4096"),
    (["prefill", *TINY, "--tokens", "4096"], "use 4080 or less"),
    (["iteration", *TINY, "--nodes", "9"], "change --draft-steps, --topk or --nodes"),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("flags", "reason"), LATE, ids=lambda value: str(value)[:60])
def test_what_the_engine_cannot_do_is_said_in_one_line(flags, reason, capsys):
    assert run([*flags]) == 1
    assert reason in capsys.readouterr().err


def test_wrong_flags_are_found_before_torch_is_loaded():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from benchmarks.__main__ import run\n"
        "for flags in (['decode', '--rows', '0'], ['iteration', '--body', 'x'],\n"
        "              ['prefill', '--dtype', 'x'], ['decode', '--model', 'x']):\n"
        "    assert run([*flags]) == 1, flags\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


RATES = DeviceRates(name="", bandwidth=1000.0, matrix=5000.0)


def test_a_step_reads_every_weight_and_the_kv_of_every_row_once():
    (step,) = step_passes(find_body("tiny").config, "bfloat16", rows=3, nodes=1, context=10.0)
    assert step.weight_bytes == 2 * (MATRICES + NORMS)
    assert step.kv_bytes == 3 * 10 * 4 * KV_TOKEN * 2
    assert step.flops == 2 * 3 * MATRICES
    read_s = (step.weight_bytes + step.kv_bytes) / 1000.0
    assert step.seconds(RATES) == pytest.approx(read_s)  # up to 6 operations for 2 bytes


def test_a_step_of_many_nodes_takes_as_long_as_its_products():
    (step,) = step_passes(find_body("tiny").config, "bfloat16", rows=3, nodes=16, context=10.0)
    attention = 4 * 64 * 48 * 10 * 4  # scores and sums, heads of 64 lanes together, 4 layers
    assert step.seconds(RATES) == pytest.approx((2 * 48 * MATRICES + attention) / 5000.0)


def test_an_iteration_is_verification_catching_up_and_one_draft_step_less_than_the_depth():
    config = find_body("tiny").config
    draft = DraftShape(vocab=128, steps=5, topk=1, nodes=6, emitted=3.0)
    rates = DeviceRates(name="", bandwidth=1000.0, matrix=1e30)  # only bytes count
    verify, *drafts = iteration_passes(config, "bfloat16", draft, rows=1, context=10.0)
    assert (verify,) == step_passes(config, "bfloat16", rows=1, nodes=6, context=10.0)
    layer = 2 * (HEAD_LAYER + HEAD_NORMS) + 10 * KV_TOKEN * 2
    score, aux_hidden_states = 2 * 128 * 64, 2 * 64 * 3 * 64
    catch_up = aux_hidden_states + layer + score
    assert total_s(drafts, rates) == pytest.approx((catch_up + 4 * (layer + score)) / 1000.0)


def test_an_iteration_with_modules_reads_a_module_and_the_head_for_every_step():
    config = find_body("tiny").config
    draft = DraftShape(vocab=512, steps=3, topk=1, nodes=4, emitted=2.0)
    rates = DeviceRates(name="", bandwidth=1000.0, matrix=1e30)  # only bytes count
    verify, *drafts = module_passes(config, "bfloat16", draft, rows=2, context=10.0)
    assert (verify,) == step_passes(config, "bfloat16", rows=2, nodes=4, context=10.0)
    module = 2 * (LAYER + 2 * 64 + 64 * 128 + 3 * 64) + 2 * 10 * KV_TOKEN * 2
    assert total_s(drafts, rates) == pytest.approx(3 * (module + 2 * 512 * 64) / 1000.0)


def test_the_floor_of_the_8b_body_is_the_published_one_less_the_embedding_no_step_reads():
    config = find_body("llama-8b").config
    rates = DeviceRates(name="", bandwidth=3.85e12, matrix=782e12)
    assert held_bytes(config, "bfloat16") / 3.85e12 == pytest.approx(4.17e-3, rel=1e-3)
    embedding_s = 128256 * 4096 * 2 / 3.85e12
    (step,) = step_passes(config, "bfloat16", rows=1, nodes=1, context=0.0)
    assert step.seconds(rates) == pytest.approx(4.17e-3 - embedding_s, rel=1e-3)
    draft = DraftShape(vocab=32000, steps=5, topk=1, nodes=6, emitted=3.0)
    _, *drafts = iteration_passes(config, "bfloat16", draft, rows=1, context=0.0)
    assert total_s(drafts, rates) == pytest.approx(4 * 0.195e-3 + 0.22e-3, rel=5e-3)


def test_prefill_counts_matrices_causal_attention_and_one_row_of_logits():
    flops = prefill_flops(find_body("tiny").config, tokens=10)
    assert flops == 2 * (10 * 4 * LAYER + 512 * 64) + 4 * 64 * 55 * 4


def test_the_peer_stands_only_beside_what_it_was_measured_on():
    ours = MeasuredModel(model="llama-8b", dtype="bfloat16", card="NVIDIA H200")
    (plain,) = plain_step(Case(rows=8, prompt=128), ours)
    assert plain.step_s == 4.97e-3
    assert plain.tokens_per_s == pytest.approx(8 / 4.97e-3)
    (drafted,) = drafting_step(Case(rows=64, prompt=128), ours, mean_emitted=3.0)
    assert drafted.tokens_per_s == 13329
    assert plain_step(Case(rows=8, prompt=900), ours) == ()
    assert plain_step(Case(rows=5, prompt=128), ours) == ()
    assert plain_step(Case(rows=8, prompt=128), replace(ours, card="NVIDIA A100")) == ()
    assert plain_step(Case(rows=8, prompt=128), replace(ours, dtype="float16")) == ()
    assert drafting_step(Case(rows=8, prompt=128), ours, mean_emitted=2.0) == ()


def test_cases_are_all_rows_at_short_prompts_then_at_prompts_that_end_within_the_context():
    work = plan_work((1, 64), prompt=128, context=1024, steps=64)
    assert work.cases == (
        Case(rows=1, prompt=128),
        Case(rows=64, prompt=128),
        Case(rows=1, prompt=1024 - (1 + 12 + 64) - 4),
        Case(rows=64, prompt=1024 - (8 + 12 + 64) - 4),
    )
    assert PROMPTS_A_STEP == MAX_CHUNKS
    drafted = plan_work((1,), prompt=1, context=1024, steps=64, emitted=2.5, nodes=6)
    assert drafted.cases[1].prompt == 1024 - 193 - 24  # 77 rounds of 2.5


@pytest.mark.parametrize(
    ("budget", "parents", "depths"),
    [
        ((5, 1, 4), [-1, 0, 1, 2], [0, 1, 2, 3]),
        ((5, 2, 6), [-1, 0, 0, 1, 2, 3], [0, 1, 1, 2, 2, 3]),
        ((1, 2, 3), [-1, 0, 0], [0, 1, 1]),
        ((2, 2, 7), [-1, 0, 0, 1, 2, 1, 2], [0, 1, 1, 2, 2, 2, 2]),
    ],
)
def test_trees_that_cost_nothing_are_as_deep_and_wide_as_the_budget(budget, parents, depths):
    steps, topk, nodes = budget
    tree = fixed_tree(
        Budget(steps=steps, topk=topk, nodes=nodes), rows=2, device=torch.device("cpu")
    )
    expected = tree_of([[0] * nodes] * 2, [parents] * 2)
    assert tree.parents.tolist() == [parents] * 2
    assert tree.depths.tolist() == [depths] * 2
    assert torch.equal(tree.ancestors, expected.ancestors)


def test_kernels_that_overlap_are_busy_once_and_gaps_are_the_rest_of_the_span():
    def kernel(name, start, end):
        return Kernel(name=name, start_us=start, end_us=end, own_us=end - start)

    runs = [kernel("nvjet_tst", 0, 10), kernel("_rms_norm", 8, 14), kernel("nvjet_tst", 20, 30)]
    found = summarise(Case(rows=1, prompt=1), runs, num_steps=2)
    assert found.span_s == pytest.approx(15e-6)
    assert found.busy_s == pytest.approx(12e-6)
    assert found.gap_s == pytest.approx(3e-6)
    shares = {share.name: (share.step_s, share.runs) for share in found.classes}
    assert shares["GEMM"] == (pytest.approx(10e-6), 1.0)
    assert shares["small kernels"] == (pytest.approx(3e-6), 0.5)
    assert found.kernels[0].name == "nvjet_tst"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32", "GEMM"),
        ("void cublasLt::splitKreduce_kernel<32>", "GEMM"),
        ("_grouped_kernel", "GEMM"),
        *(
            (f"_{name}_kernel", "GEMM")
            for name in ("maps", "map", "heads", "bulk", "linear", "specialized")
        ),
        ("_paged_attention", "attention"),
        ("pytorch_flash::flash_fwd_splitkv_kernel", "attention"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("_rms_norm", "small kernels"),
    ],
)
def test_kernels_are_classed_by_name(name, kind):
    assert class_of(name) == kind


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (run_layers, "whole layers"),
        (run_head, "whole layers"),
        (catch_up_rows, "whole layers"),
        (dense_product, "GEMM"),
        (tile_product, "GEMM"),
        (gated_product, "GEMM"),
        (projected_heads, "GEMM"),
        (attend_rows, "attention"),
        (norm_rows, "small kernels"),
    ],
)
def test_compiled_functions_of_a_cpu_are_classed_by_what_they_compute(function, kind):
    assert class_of(name_of(int(function.address))) == kind


def test_dummy_weights_keep_states_finite_and_are_equal_on_every_call():
    config = find_body("tiny").config
    one, other = (
        dummy_decoder(config, dtype="bfloat16", device=torch.device("cpu")) for _ in range(2)
    )
    assert torch.equal(one.embedding, other.embedding)
    assert one.embedding.dtype == torch.float32  # in which a CPU computes
    assert one.embedding.std().item() == pytest.approx(0.02, rel=0.05)
    head = dummy_head(one, draft_vocab=128, dtype="bfloat16")
    assert head.facts.aux_layers.layers == (2, 2, 1)
    assert head.target_ids.tolist() == list(range(0, 512, 4))
