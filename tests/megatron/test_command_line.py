"""Command lines as they stand in traces: Megatron-LM flags, Bridge overrides, whatever launched them."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import BUILDS_COMM_OVERLAP, ConfigValue, RunConfig
from three_walls.megatron.settings.setting_sources import SourceSettings

COMMON = shlex.split(
    "--use-mcore-models --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion "
    "--attention-backend unfused --normalization RMSNorm --swiglu --disable-bias-linear --bf16 "
    "--use-distributed-optimizer --mock-data --tokenizer-type NullTokenizer --vocab-size 32000 --lr 1e-4 "
    "--train-iters 11 --eval-iters 0 --moe-router-force-load-balancing --moe-router-load-balancing-type aux_loss "
    "--moe-aux-loss-coeff 1e-3 --moe-router-dtype fp32 --no-check-for-nan-in-loss-and-grad --profile "
    "--profile-step-start 8 --profile-step-end 10 --profile-ranks 0 1 2 3 --num-layers 4 --hidden-size 4096 "
    "--ffn-hidden-size 2048 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 "
    "--num-experts 8 --moe-router-topk 4 --micro-batch-size 1 --expert-model-parallel-size 4 --global-batch-size 8"
)
PYTHON = ["python3", "-W", "ignore", "/workspace/megatron-lm/pretrain_gpt.py"]


def config_of(arguments: list[str]) -> RunConfig:
    return merge_sources([read_command_line(arguments)])


def values(arguments: list[str]) -> dict[str, object]:
    return {name: found.value for name, found in config_of(arguments).values.items()}


def source(arguments: list[str], key: str) -> str:
    return config_of(arguments).values[key].source


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--moe-token-dispatcher-type alltoall", {"moe_token_dispatcher_type": "alltoall"}),
        (
            "--moe-token-dispatcher-type alltoall --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1",
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        ),
        (
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
        ),
        (
            "--moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm",
            {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": False},
        ),
        ("--moe-token-dispatcher-type alltoall --kv-channels 64", {"kv_channels": 64}),
    ],
    ids=["alltoall", "full recompute", "deepep", "ep overlap", "kv channels"],
)
def test_a_real_command_line_is_read_in_full(more: str, expected: dict[str, object]) -> None:
    line = [*PYTHON, *COMMON, *more.split()]
    found = read_command_line(line)
    assert (found.dialect, find_program(line).file_name, found.warnings) == ("megatron_lm", "pretrain_gpt.py", ())
    assert found.unknown == ("--lr", "--mock-data", "--use-mcore-models")
    given = values(line)
    assert expected.items() <= given.items()
    assert given["num_moe_experts"] == 8
    assert given["profile_ranks"] == (0, 1, 2, 3)
    assert given["moe_aux_loss_coeff"] == 0.001
    assert given["gradient_accumulation_fusion"] is False
    assert given["check_for_nan_in_grad"] is False


def test_each_value_has_its_source() -> None:
    line = [*PYTHON, *COMMON]
    assert source(line, "num_moe_experts") == "command line"
    assert source(line, "moe_token_dispatcher_type") == "Megatron-LM default"
    assert source(line, "expert_tensor_parallel_size") == "derived: tensor_model_parallel_size"


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("", "transformer_impl", "transformer_engine"),
        ("", "attention_backend", "auto"),
        ("", "recompute_granularity", None),
        ("", "overlap_p2p_comm", False),
        ("", "ffn_hidden_size", 4096),
        ("--swiglu", "ffn_hidden_size", 2688),
        ("", "kv_channels", 128),
        ("--num-query-groups 2", "num_query_groups", 8),
        ("--num-query-groups 2 --group-query-attention", "num_query_groups", 2),
        ("--num-experts 8", "moe_ffn_hidden_size", 4096),
        ("--num-experts 0", "num_moe_experts", None),
        ("--tensor-model-parallel-size 2", "expert_tensor_parallel_size", 2),
        ("--sequence-parallel", "sequence_parallel", False),
        ("--bf16", "grad_reduce_in_fp32", True),
        ("--bf16 --grad-reduce-in-bf16", "grad_reduce_in_fp32", False),
        ("--recompute-activations", "recompute_granularity", "selective"),
        ("--recompute-activations", "recompute_modules", ("core_attn",)),
        ("--moe-enable-deepep", "moe_flex_dispatcher_backend", "deepep"),
        ("--enable-cuda-graph", "cuda_graph_impl", "local"),
        ("--cuda-graph-modules attn moe_router", "cuda_graph_scope", ("attn", "moe_router")),
        ("--use-flash-attn", "attention_backend", "auto"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         "virtual_pipeline_model_parallel_size", 2),
        ("--num-virtual-stages-per-pipeline-rank 1", "virtual_pipeline_model_parallel_size", None),
        ("--moe-layer-freq ([0]*3+[1]*5)", "moe_layer_freq", "([0]*3+[1]*5)"),
        ("--micro-batch-size=4", "micro_batch_size", 4),
        ("--disable-tp-comm-bulk-wgrad", "tp_comm_bulk_wgrad", False),
    ],
)  # fmt: skip
def test_flags_mean_what_megatron_lm_makes_of_them(flags: str, key: str, value: object) -> None:
    shape = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --micro-batch-size 1"
    assert values(["pretrain_gpt.py", *shape.split(), *flags.split()])[key] == value


@pytest.mark.parametrize(("layout", "stages"), [("Et|t|t|tL", 2), ("Ettt|tL", None), ("Et|t|tL", None)])
def test_a_layout_gives_the_number_of_virtual_stages(layout: str, stages: int | None) -> None:
    words = ["pretrain_gpt.py", *COMMON, "--pipeline-model-parallel-size", "2"]
    found = values([*words, "--pipeline-model-parallel-layout", layout])
    assert found["virtual_pipeline_model_parallel_size"] == stages


@pytest.mark.parametrize("flag", ["--yaml-cfg", "--config-file", "--use-checkpoint-args"])
def test_defaults_are_unknown_when_a_file_may_set_them(flag: str) -> None:
    line = ["pretrain_gpt.py", *COMMON, flag, "x.yaml"]
    config = config_of(line)
    assert not config.knows("moe_token_dispatcher_type")
    assert config.get("num_moe_experts") == 8
    warning = f"{flag}: settings that are not on the command line come from a file: unknown"
    assert read_command_line(line).warnings == (warning,)


@pytest.mark.parametrize(
    "launcher",
    [
        "python3 -u -W ignore pretrain_gpt.py",
        "/usr/bin/python -m torch.distributed.run --nproc-per-node 8 pretrain_gpt.py",
        "torchrun --nnodes 2 --rdzv-endpoint h:1 /w/pretrain_gpt.py",
        "python /lib/torch/distributed/run.py --nnodes 2 pretrain_gpt.py",
        "numactl --cpunodebind=0 --membind=0 python pretrain_gpt.py",
        "nsys profile -o out -t cuda,nvtx --capture-range=cudaProfilerApi python -u pretrain_gpt.py",
        "torchrun --nproc-per-node 8 -m my.pretrain_gpt",
    ],
)
def test_launchers_in_front_are_skipped(launcher: str) -> None:
    line = [*launcher.split(), *COMMON]
    assert config_of(line).get("num_layers") == 4
    assert find_program(line).script_name == "pretrain_gpt"
    assert not any("nnodes" in name or "capture" in name for name in read_command_line(line).unknown)


def test_a_shell_string_is_read_up_to_the_end_of_its_command() -> None:
    text = "cd /w && export A=1; NCCL_DEBUG=INFO python pretrain_gpt.py " + " ".join(COMMON) + " 2>&1 | tee log.txt"
    found = values(["srun", "-l", "bash", "-lc", text])
    assert (found["num_layers"], found["global_batch_size"]) == (4, 8)


def test_a_value_of_the_wrong_type_is_withheld_with_a_warning() -> None:
    line = ["pretrain_gpt.py", *COMMON, "--num-layers", "many", "--seq-length"]
    assert not config_of(line).knows("num_layers")
    (withheld,) = config_of(line).withheld_values.values()
    assert withheld.source == "command line: value of an unexpected form, not shown"
    assert read_command_line(line).warnings == (
        "--num-layers: expected a whole number, found something else; not shown",
        "--seq-length: no value follows",
    )


BRIDGE = [
    "torchrun",
    "--nproc_per_node=8",
    "scripts/training/run_recipe.py",
    "--recipe",
    "qwen3_30b_a3b_pretrain_config",
]


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("model.moe_token_dispatcher_type=flex", "moe_token_dispatcher_type", "flex"),
        ("model.num_moe_experts=128", "num_moe_experts", 128),
        ("model.recompute_granularity=null", "recompute_granularity", None),
        ("model.cuda_graph_scope=[moe_router,moe_preprocess]", "cuda_graph_scope", ("moe_router", "moe_preprocess")),
        ("model.cuda_graph_scope=attn", "cuda_graph_scope", ("attn",)),
        ("model.cuda_graph_impl=none", "cuda_graph_impl", "none"),
        (
            'model.pipeline_model_parallel_layout="Et*3|(tt|)*29m|L"',
            "pipeline_model_parallel_layout",
            "Et*3|(tt|)*29m|L",
        ),
        ("+model.use_te_rng_tracker=True", "te_rng_tracker", True),
        ("++comm_overlap.overlap_moe_expert_parallel_comm=true", "overlap_moe_expert_parallel_comm", True),
        ("comm_overlap={_target_:a.B,tp_comm_overlap:false,delay_wgrad_compute:true}", "delay_wgrad_compute", True),
        ("model.overlap_moe_expert_parallel_comm=true", "overlap_moe_expert_parallel_comm", True),
        ("mixed_precision=bf16_with_mxfp8_mixed", "fp8_recipe", "mxfp8"),
        ("ddp.overlap_grad_reduce=false", "overlap_grad_reduce", False),
        ("optimizer.optimizer_offload_fraction=1", "optimizer_offload_fraction", 1.0),
        ("train.manual_gc_interval=100", "manual_gc_interval", 100),
    ],
)
def test_bridge_overrides_are_read(override: str, key: str, value: object) -> None:
    config = config_of([*BRIDGE, override])
    assert config.dialect == "bridge"
    assert config.values[key].value == value


def test_a_recipe_decides_what_a_bridge_command_line_leaves_out() -> None:
    assert set(values([*BRIDGE, "train.train_iters=5"])) == {"train_iters"}


def test_only_a_plain_override_shows_that_the_recipe_has_the_object() -> None:
    assert values([*BRIDGE, "comm_overlap.delay_wgrad_compute=true"])["comm_overlap"] == "CommOverlapConfig"
    assert "comm_overlap" not in values([*BRIDGE, "++comm_overlap.delay_wgrad_compute=true"])


def test_a_section_that_the_command_line_builds_is_known_with_its_origin() -> None:
    built = "++comm_overlap._target_=megatron.bridge.training.comm_overlap.CommOverlapConfig"
    for words in (
        [built, "++comm_overlap.tp_comm_overlap=false", "comm_overlap.tp_comm_overlap=true"],
        ["comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:false}"],
    ):
        found = config_of([*BRIDGE, *words]).values["comm_overlap"]
        assert (found.value, found.source) == ("CommOverlapConfig", BUILDS_COMM_OVERLAP)


def test_a_removed_key_is_unknown() -> None:
    assert "num_layers" not in values([*BRIDGE, "model.num_layers=4", "~model.num_layers"])


def test_options_of_the_performance_scripts_are_read() -> None:
    line = (
        "python scripts/performance/run_script.py -m qwen -mr qwen3_30b_a3b -g h100 -ng 16 -ep 8 -tp 1 -vp None "
        "--moe_flex_dispatcher_backend hybridep --moe_a2a_overlap true --cuda_graph_scope attn,moe_router "
        "-rl 2 -hf s3cr3t model.moe_permute_fusion=true"
    )
    given = values(line.split())
    assert given == {
        "moe_permute_fusion": True,
        "expert_model_parallel_size": 8,
        "tensor_model_parallel_size": 1,
        "sequence_parallel": False,
        "virtual_pipeline_model_parallel_size": None,
        "moe_flex_dispatcher_backend": "hybridep",
        "moe_token_dispatcher_type": "flex",
        "overlap_moe_expert_parallel_comm": True,
        "delay_wgrad_compute": True,
        "moe_shared_expert_overlap": False,
        "cuda_graph_scope": ("attn", "moe_router"),
        "recompute_num_layers": 2,
        "recompute_granularity": "full",
        "recompute_method": "block",
    }
    assert "s3cr3t" not in repr(read_command_line(line.split()))


SCRIPT = ["python", "scripts/performance/run_script.py", "-m", "qwen", "-mr", "qwen3_30b_a3b"]
GUIDE = shlex.split(
    "--cuda_graph_impl none --moe_flex_dispatcher_backend None --moe_a2a_overlap false "
    "comm_overlap.overlap_moe_expert_parallel_comm=true comm_overlap.delay_wgrad_compute=false "
    "model.moe_shared_expert_overlap=false"
)


def test_an_option_that_turns_nothing_on_leaves_the_override_alone() -> None:
    given = values([*SCRIPT, *GUIDE])
    assert given["overlap_moe_expert_parallel_comm"] is True
    assert given["delay_wgrad_compute"] is False
    turned_on = [word.replace("false", "true") if word == "false" else word for word in GUIDE]
    assert values([*SCRIPT, *turned_on])["delay_wgrad_compute"] is True


@pytest.mark.parametrize(
    ("option", "off", "on", "key"),
    [
        ("--moe_a2a_overlap", "false", "true", "overlap_moe_expert_parallel_comm"),
        ("--nccl_ub", "False", "True", "nccl_ub"),
        ("--use_megatron_fsdp", "0", "1", "use_megatron_fsdp"),
        ("-ol", "0", "2", "cpu_offloading"),
        ("--activation_offload_layers", "0", "2", "cpu_offloading_weights"),
    ],
)
def test_false_and_no_layers_set_nothing_as_in_the_scripts(option: str, off: str, on: str, key: str) -> None:
    assert values([*SCRIPT, option, off]) == {}
    assert key in values([*SCRIPT, option, on])


def test_no_recomputed_layers_still_set_full_recompute() -> None:
    assert values([*SCRIPT, "-rl", "0"])["recompute_granularity"] == "full"


def test_no_flex_backend_is_the_plain_all_to_all() -> None:
    found = config_of([*SCRIPT, "--moe_flex_dispatcher_backend", "None"])
    assert found.get("moe_token_dispatcher_type") == "alltoall"
    assert found.knows("moe_flex_dispatcher_backend") and found.get("moe_flex_dispatcher_backend") is None
    assert "moe_token_dispatcher_type" not in values(SCRIPT)


def test_the_backend_that_older_releases_keep_contradicts_nothing() -> None:
    command = read_command_line([*SCRIPT, "--moe_flex_dispatcher_backend", "None"])
    saved = {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "deepep"}
    file = SourceSettings("config file", {key: ConfigValue(value, "config file") for key, value in saved.items()})
    found = merge_sources([file, command])
    assert ({key: found.get(key) for key in saved}, found.conflicts) == (saved, ())


@pytest.mark.parametrize(("size", "is_on"), [("1", False), ("2", True)])
def test_tensor_parallelism_of_run_script_brings_sequence_parallelism(size: str, is_on: bool) -> None:
    for option in ("-tp", "--tensor_model_parallel_size"):
        found = values([*SCRIPT, option, size, f"model.sequence_parallel={not is_on}"])
        assert found["sequence_parallel"] is is_on
    assert "sequence_parallel" not in values([*BRIDGE, "-tp", "2"])
    assert "sequence_parallel" not in values([*SCRIPT, "-tp"])


def test_environment_on_the_command_line_is_read_only_where_it_may_be_shown() -> None:
    found = config_of([*BRIDGE, "++env_vars.NCCL_DEBUG=INFO", "++env_vars.WANDB_API_KEY=s3cr3t"])
    assert {name: value.value for name, value in found.environment.items()} == {"NCCL_DEBUG": "INFO"}
    assert "s3cr3t" not in repr(found)


def test_values_of_unknown_options_are_not_kept() -> None:
    words = ["--wandb-api-key", "s3cr3t", "--other=s3cr3t", "-ks3cr3t", "s3cr3t", "logger.wandb_key=s3cr3t"]
    assert "s3cr3t" not in repr(read_command_line(["pretrain_gpt.py", *COMMON, *words[:-1]]))
    assert "s3cr3t" not in repr(read_command_line([*BRIDGE, *words]))


def test_megatron_lms_own_script_needs_no_flags_to_be_recognized() -> None:
    assert config_of(["python", "pretrain_gpt.py", "--num-layers", "4"]).dialect == "megatron_lm"
    assert config_of(["python", "pretrain_gpt.py", "model.num_layers=4"]).dialect == "bridge"


@pytest.mark.parametrize("line", ["", "python train.py --lr 1e-3 --num-layers 4", "./a.out x", "bash -c exit"])
def test_another_program_is_unknown(line: str) -> None:
    config = config_of(line.split())
    assert (config.dialect, dict(config.values)) == ("unknown", {})


PIECES = st.sampled_from(
    [*COMMON, *BRIDGE, "bash", "-c", "-m", "--", "=", "model.x=[[", "model.num_layers={a:{b:[", "~model"]
)


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(), PIECES), max_size=30))
def test_no_words_make_it_fail(words: list[str]) -> None:
    read_command_line(words)
    read_command_line([*BRIDGE, *words])
    read_command_line(["pretrain_gpt.py", *COMMON, *words])
    read_command_line(["bash", "-c", " ".join(words)])
