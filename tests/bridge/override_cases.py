"""Seeded sets of overrides: performance settings alone, with odd values and types, in Hydra's odd forms, and mixed.

The same seed gives the same cases. A case starts from a recipe or a saved run_config.yaml; many settings in it are
those that a tuning run changes, with values that some releases take and others refuse.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bridge.override_categories import CATEGORIES, REMOVED, VALUES
from three_walls.tables.bridge_releases import bridge_schema

OVERLAP = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
BACKEND = "megatron.core.transformer.enums.AttnBackend"
SIZES: dict[str, Sequence[Any]] = {
    "model.tensor_model_parallel_size": (1, 2, 4, 8, 3),
    "model.pipeline_model_parallel_size": (1, 2, 4, 8, 3),
    "model.context_parallel_size": (1, 2, 4),
    "model.expert_model_parallel_size": (1, 2, 4, 8, 16, 3),
    "model.expert_tensor_parallel_size": (1, 2, "null"),
    "model.virtual_pipeline_model_parallel_size": ("null", 1, 2, 3, 4, 6),
    "model.sequence_parallel": ("true", "false"),
    "model.num_moe_experts": (8, 64, 128, 1, 0, "null"),
    "model.num_layers": (4, 24, 48, 47, 94),
    "model.num_layers_in_first_pipeline_stage": ("null", 2, 10, 11, 24, 0),
    "model.num_layers_in_last_pipeline_stage": ("null", 2, 10, 14, 24),
    "model.account_for_embedding_in_pipeline_split": ("true", "false"),
    "model.account_for_loss_in_pipeline_split": ("true", "false"),
    "model.pipeline_model_parallel_layout": (
        "null",
        '"Et*24|t*24L"',
        '"Et*12|t*12|t*12|t*12L"',
        '"Et*11|(t*12|)*2t*13L"',
        '"Et*24|t*24"',
        '"Et*47|L"',
        '"Ettt|(tt|)*22,tL"',
        '"E|t*48|L"',
        '"foo"',
        "[[embedding,decoder,decoder],[decoder,decoder,loss]]",
    ),
    "model.hierarchical_context_parallel_sizes": ("null", "[2,1]", "[2,2]", "[4]", "[1]"),
    "model.cp_comm_type": ("p2p", "a2a", "all_gather", '"a2a+p2p"', "null", "[p2p,a2a]"),
    "model.microbatch_group_size_per_vp_stage": (1, 2, 4, "null"),
    "dist.eval_context_parallel_size": ("null", 1, 2, 3),
    "model.gtp_weight_remat_size": (1, 2),
    "model.tensor_parallel_num_weight_shards": ("null", 2, 4),
    "dist.use_tp_pp_dp_mapping": ("true", "false"),
}
BATCH: dict[str, Sequence[Any]] = {
    "train.micro_batch_size": (1, 2, 4, 3, "null"),
    "train.global_batch_size": (8, 16, 32, 512, 2048, 12, 7, "null"),
    "train.train_iters": (10, 100, 1000000, "null", 0),
    "train.train_samples": ("null", 1000),
    "train.rampup_batch_size": ("null", "[8,8,1000]"),
    "validation.eval_global_batch_size": ("null", 8, 32, 6),
    "validation.eval_micro_batch_size": ("null", 1, 2, 3),
    "validation.eval_iters": (0, 32, "null"),
    "train.eval_iters": (0, 32),
    "train.manual_gc": ("true", "false"),
    "train.manual_gc_interval": (0, 100, 10),
    "model.seq_length": (2048, 4096, 8192, 4095),
    "dataset.sequence_length": (2048, 4096, 8192),
    "dataset.seq_length": (2048, 4096, 8192),
    "scheduler.lr_warmup_iters": (0, 10, 2000),
    "scheduler.lr_decay_iters": ("null", 100, 10000),
    "scheduler.lr_warmup_fraction": ("null", 0.1),
    "scheduler.lr_decay_style": ("cosine", "WSD", "linear", "foo"),
    "scheduler.lr_warmup_samples": (0, 100),
    "scheduler.max_steps": ("null", 10, 2000000),
    "scheduler.weight_decay_incr_style": ("constant", "linear", "foo"),
}
EXPERTS: dict[str, Sequence[Any]] = {
    "model.moe_token_dispatcher_type": ("alltoall", "flex", "allgather", "foo"),
    "model.moe_flex_dispatcher_backend": ("deepep", "hybridep", "null", "ncclep", "foo"),
    "model.moe_enable_deepep": ("true", "false"),
    "model.moe_deepep_num_sms": (20, 24, 32, "null"),
    "model.moe_hybridep_num_sms": (16, 32, "null"),
    "model.moe_flex_dispatcher_num_sms": (16, 24, "null"),
    "model.moe_grouped_gemm": ("true", "false"),
    "model.moe_permute_fusion": ("true", "false"),
    "model.moe_router_fusion": ("true", "false"),
    "model.moe_shared_expert_overlap": ("true", "false"),
    "model.moe_shared_expert_intermediate_size": ("null", 768, 0),
    "model.moe_router_dtype": ("fp32", "fp64", "null"),
    "model.moe_router_force_load_balancing": ("true", "false"),
    "model.moe_router_load_balancing_type": (
        "aux_loss",
        "seq_aux_loss",
        "none",
        "sinkhorn",
        "quantile_balancing",
        "[aux_loss,seq_aux_loss]",
        "foo",
    ),
    "model.moe_aux_loss_coeff": (0.001, 0, "[0.001,0.01]", "[0.1]"),
    "model.moe_z_loss_coeff": ("null", 0.001),
    "model.moe_router_topk": (1, 2, 8),
    "model.moe_router_score_function": ("softmax", "sigmoid"),
    "model.moe_router_pre_softmax": ("true", "false"),
    "model.moe_router_enable_expert_bias": ("true", "false"),
    "model.moe_router_num_groups": ("null", 8, 4, 3),
    "model.moe_router_group_topk": ("null", 2, 4, 16),
    "model.moe_router_topk_limited_devices": ("null", 2),
    "model.moe_router_padding_for_fp8": ("true", "false"),
    "model.moe_router_padding_for_quantization": ("true", "false"),
    "model.moe_expert_capacity_factor": ("null", 1.0, -1),
    "model.moe_pad_expert_input_to_capacity": ("true", "false"),
    "model.moe_expert_rank_capacity_factor": ("null", 1.5),
    "model.moe_paged_stash": ("true", "false"),
    "model.moe_layer_freq": (1, 2, "[0,1]"),
    "model.moe_layer_recompute": ("true", "false"),
    "model.moe_ffn_hidden_size": ("null", 768),
    "model.mtp_num_layers": ("null", 1, 2, 0),
    "model.moe_single_grouped_weight": ("true", "false"),
    "model.moe_latent_size": ("null", 512),
    "model.moe_permute_fusion_into_hybridep": ("true", "false"),
    "model.use_transformer_engine_op_fuser": ("true", "false"),
    "model.moe_use_legacy_grouped_gemm": ("true", "false"),
    "model.moe_apply_probs_on_input": ("true", "false"),
}
OVERLAPS: dict[str, Sequence[Any]] = {
    "model.overlap_moe_expert_parallel_comm": ("true", "false"),
    "model.delay_wgrad_compute": ("true", "false"),
    "model.overlap_dispatch_backward_with_experts_wgrad": ("true", "false"),
    "model.ep_overlap_early_attn_memory_release": ("true", "false"),
    "model.tp_comm_overlap": ("true", "false"),
    "model.overlap_p2p_comm": ("true", "false"),
    "model.batch_p2p_comm": ("true", "false"),
    "model.overlap_p2p_comm_warmup_flush": ("true", "false"),
    "model.defer_embedding_wgrad_compute": ("true", "false"),
    "model.wgrad_deferral_limit": (0, 22, -1),
    "comm_overlap": (
        "null",
        f"{{_target_:{OVERLAP},tp_comm_overlap:false}}",
        f"{{_target_:{OVERLAP},tp_comm_overlap:false,overlap_moe_expert_parallel_comm:true,delay_wgrad_compute:true}}",
        f"{{_target_:{OVERLAP}}}",
    ),
    "comm_overlap._target_": (OVERLAP,),
    "comm_overlap.tp_comm_overlap": ("true", "false"),
    "comm_overlap.overlap_moe_expert_parallel_comm": ("true", "true", "false", "null"),
    "comm_overlap.delay_wgrad_compute": ("true", "true", "false", "null"),
    "comm_overlap.overlap_grad_reduce": ("true", "false"),
    "comm_overlap.overlap_param_gather": ("true", "false"),
    "comm_overlap.overlap_param_gather_with_optimizer_step": ("true", "false"),
    "comm_overlap.align_param_gather": ("true", "false"),
    "comm_overlap.bucket_size": (100000000, "null"),
    "comm_overlap.defer_embedding_wgrad_compute": ("true", "false"),
    "comm_overlap.wgrad_deferral_limit": (22, -1),
    "comm_overlap.overlap_p2p_comm": ("true", "false"),
    "comm_overlap.batch_p2p_comm": ("true", "false"),
}
GRAPHS: dict[str, Sequence[Any]] = {
    "model.cuda_graph_impl": ("none", "transformer_engine", "local", "full_iteration", "foo", "null"),
    "model.cuda_graph_scope": (
        "null",
        "full_iteration",
        "full",
        "[]",
        "[attn]",
        "[moe_router,moe_preprocess]",
        "[attn,moe_router]",
        "[moe]",
        "[mlp]",
        "attn",
        "[full_iteration]",
        "[moe_preprocess]",
        "[foo]",
        '"attn,moe_router"',
    ),
    "model.cuda_graph_modules": (
        "null",
        "[]",
        "[attn]",
        "[attn,moe_router,moe_preprocess]",
        "[moe]",
        "[mlp]",
        "[moe,moe_router]",
        "full",
        "[full_iteration]",
        "[foo]",
    ),
    "model.enable_cuda_graph": ("true", "false"),
    "model.external_cuda_graph": ("true", "false"),
    "model.use_te_rng_tracker": ("true", "false"),
    "rng.te_rng_tracker": ("true", "false"),
    "rerun_state_machine.check_for_nan_in_loss": ("true", "false"),
    "model.inference_cuda_graph_scope": ("none", "layer", "block"),
    "model.cuda_graph_warmup_steps": (0, 3),
}
MEMORY: dict[str, Sequence[Any]] = {
    "model.recompute_granularity": ("null", "full", "selective", "foo"),
    "model.recompute_method": ("null", "uniform", "block", "foo"),
    "model.recompute_num_layers": ("null", 1, 2),
    "model.recompute_modules": (
        "null",
        "[core_attn]",
        "[moe]",
        "[moe_act]",
        "[layernorm]",
        "[moe_act,layernorm]",
        "[mla_up_proj]",
        "[shared_experts]",
        "[mlp]",
        "[]",
        "[foo]",
        "[gdn_norm_out]",
    ),
    "model.distribute_saved_activations": ("true", "false"),
    "model.cpu_offloading": ("true", "false"),
    "model.cpu_offloading_num_layers": (0, 2, 100, -1),
    "model.fine_grained_activation_offloading": ("true", "false"),
    "model.offload_modules": ("[]", "[core_attn]", "[attn_proj]", "[expert_fc1,moe_act]", "[foo]", "null"),
    "model.attention_dropout": (0.0, 0.1),
    "optimizer.optimizer_cpu_offload": ("true", "false"),
    "optimizer.optimizer_offload_fraction": (0.0, 0.5, 1.0, 1.5),
    "model.gradient_accumulation_fusion": ("true", "false"),
    "model.bias_activation_fusion": ("true", "false"),
    "model.apply_rope_fusion": ("true", "false"),
    "model.cross_entropy_loss_fusion": ("true", "false"),
    "model.cross_entropy_fusion_impl": ("te", "native"),
    "model.bias_dropout_fusion": ("true", "false"),
    "model.masked_softmax_fusion": ("true", "false"),
    "model.use_te_activation_func": ("true", "false"),
    "model.activation_func_fp8_input_store": ("true", "false"),
    "model.attention_backend": (
        "flash",
        "fused",
        f"{{_target_:{BACKEND},_args_:[2]}}",
        f"{{_target_:{BACKEND},_args_:[9]}}",
    ),
    "model.deterministic_mode": ("true", "false"),
    "model.add_bias_linear": ("true", "false"),
    "model.transformer_impl": ("transformer_engine", "local", "inference_optimized"),
    "model.qk_layernorm": ("true", "false"),
    "model.rotary_interleaved": ("true", "false"),
    "model.multi_latent_attention": ("true", "false"),
    "model.q_lora_rank": (512, "null"),
    "model.kv_lora_rank": (512,),
    "model.apply_query_key_layer_scaling": ("true", "false"),
    "model.restore_modelopt_state": ("true", "false"),
    "model.hidden_dropout": (0.0, 0.1),
    "model.num_attention_heads": (32, 30, 8),
    "model.num_query_groups": ("null", 4, 3, 8),
    "model.kv_channels": ("null", 128),
    "model.fp32_residual_connection": ("true", "false"),
    "model.normalization": ("RMSNorm", "LayerNorm"),
    "model.activation_func": ("silu", "gelu", "foo"),
    "model.gated_linear_unit": ("true", "false"),
    "model.batch_invariant_mode": ("true", "false"),
    "model.symmetric_ar_type": ("null", "two_shot"),
    "model.use_cpu_initialization": ("true", "false"),
    "model.variable_seq_lengths": ("true", "false"),
    "model.no_rope_freq": ("null", 4, 5),
    "model.flash_decode": ("true", "false"),
    "model.moe_input_jitter_eps": ("null", 0.1),
    "model.inference_fuse_tp_communication": ("true", "false"),
    "model.disable_bf16_reduced_precision_matmul": ("true", "false"),
    "model.use_mup": ("true", "false"),
    "model.experimental_attention_variant": ("null", "gated_delta_net", "dsa", "foo"),
    "model.linear_attention_freq": ("null", 4),
    "model.softmax_scale": ("null", 0.1),
    "model.fused_residual_rmsnorm": ("true", "false"),
    "model.fused_single_qkv_rope": ("true", "false"),
    "model.attention_output_gate": ("true", "false"),
    "model.moe_mlp_glu_interleave_size": ("null", 32),
    "model.moe_router_bias_update_rate": (0.001, 0),
    "model.glu_linear_offset": (0.0, 1.0),
    "model.vocab_size": (1000, "null"),
    "model.should_pad_vocab": ("true", "false"),
    "model.parallel_output": ("true", "false"),
    "model.flash_attention_version": ("null", 2, 5),
}
PRECISION: dict[str, Sequence[Any]] = {
    "mixed_precision": (
        "bf16_mixed",
        "bf16-mixed",
        "fp16_mixed",
        "bf16_with_fp8_current_scaling_mixed",
        "bf16_with_fp8_delayed_scaling_mixed",
        "bf16_with_mxfp8_mixed",
        "bf16_with_fp8_subchannel_scaling_mixed",
        "bf16_with_nvfp4_mixed",
        "nanov2_bf16_with_fp8_current_scaling_mixed",
        "bf16_mixd",
        "null",
    ),
    "mixed_precision.fp8": ("hybrid", "e4m3", "null"),
    "mixed_precision.fp8_recipe": ("delayed", "tensorwise", "mxfp8", "blockwise", "foo"),
    "mixed_precision.fp8_param_gather": ("true", "false"),
    "mixed_precision.fp8_param": ("true", "false"),
    "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": ("true", "false"),
    "mixed_precision.first_last_layers_bf16": ("true", "false"),
    "mixed_precision.grad_reduce_in_fp32": ("true", "false"),
    "mixed_precision.bf16": ("true", "false"),
    "model.fp8": ("hybrid", "e4m3", "null"),
    "model.fp4": ("e2m1", "null"),
    "model.fp8_recipe": ("delayed", "tensorwise", "mxfp8"),
    "model.fp8_param": ("true", "false"),
    "model.bf16": ("true", "false"),
    "model.fp16": ("true", "false"),
    "model.first_last_layers_bf16": ("true", "false"),
    "model.params_dtype": ("torch.bfloat16", "float32", "foo"),
    "model.pipeline_dtype": ("torch.bfloat16", "null"),
    "ddp.grad_reduce_in_fp32": ("true", "false"),
    "ddp.fp8_param_gather": ("true", "false"),
    "ddp.reuse_grad_buf_for_mxfp8_param_ag": ("true", "false"),
    "optimizer.bf16": ("true", "false"),
    "optimizer.fp16": ("true", "false"),
}
PARALLEL: dict[str, Sequence[Any]] = {
    "ddp.overlap_grad_reduce": ("true", "false"),
    "ddp.overlap_param_gather": ("true", "false"),
    "ddp.bucket_size": (100000000, "null"),
    "ddp.num_buckets": (4, 0, "null"),
    "ddp.use_distributed_optimizer": ("true", "false"),
    "ddp.nccl_ub": ("true", "false"),
    "ddp.average_in_collective": ("true", "false"),
    "ddp.check_for_nan_in_grad": ("true", "false"),
    "ddp.use_megatron_fsdp": ("true", "false"),
    "ddp.data_parallel_sharding_strategy": ("no_shard", "optim_grads_params"),
    "ddp.fsdp_manual_registration": ("true", "false"),
    "dist.use_megatron_fsdp": ("true", "false"),
    "dist.use_torch_fsdp2": ("true", "false"),
    "dist.use_decentralized_pg": ("true", "false"),
    "dist.use_gloo_process_groups": ("true", "false"),
    "optimizer.use_distributed_optimizer": ("true", "false"),
    "optimizer.overlap_param_gather": ("true", "false"),
    "optimizer.overlap_param_gather_with_optimizer_step": ("true", "false"),
    "optimizer.use_precision_aware_optimizer": ("true", "false"),
    "optimizer.optimizer": ("adam", "sgd", "muon", "foo"),
    "optimizer.exp_avg_dtype": ("torch.bfloat16", "float32", "bf16"),
    "optimizer.main_grads_dtype": ("torch.bfloat16", "torch.float32"),
    "optimizer.lr": (0.0003, 0, "foo"),
    "checkpoint.async_save": ("true", "false"),
    "checkpoint.ckpt_format": ("torch_dist", "fsdp_dtensor", "torch"),
    "checkpoint.save": ("null", "/tmp/three_walls_checkpoints"),
    "checkpoint.load": ("null",),
    "checkpoint.fully_parallel_save": ("true", "false"),
    "profiling.use_nsys_profiler": ("true", "false"),
    "profiling.use_pytorch_profiler": ("true", "false"),
    "profiling.profile_step_start": (10, 20, -1),
    "profiling.profile_step_end": (12, 5),
    "profiling.nvtx_ranges": ("true", "false"),
    "logger.log_interval": (1, 10),
    "logger.log_throughput": ("true", "false"),
    "env_vars.NCCL_ALGO": ("Ring", "foo"),
    "env_vars.CUDA_DEVICE_MAX_CONNECTIONS": (1, '"1"', 8),
    "tokenizer.vocab_size": (1000, "null"),
    "ft.enable_ft_package": ("true",),
    "straggler": ("null",),
    "inprocess_restart.enabled": ("true",),
    "inprocess_restart": ("null",),
    "ft": ("null",),
    "peft": ("null",),
    "nvrx_straggler.enabled": ("true",),
    "tensor_inspect.enabled": ("true",),
    "optimizer_config_override_provider": ("null",),
    "checkpoint.ckpt_step": ("null", 100),
    "checkpoint.load_main_params_from_ckpt": ("true", "false"),
    "checkpoint.non_persistent_ckpt_type": ("null", "local", "global"),
    "checkpoint.also_save_hf_checkpoint": ("true", "false"),
    "checkpoint.pretrained_checkpoint": ("null", "/tmp/no_such_checkpoint"),
    "checkpoint.dist_ckpt_optim_fully_reshardable": ("true", "false"),
    "checkpoint.save_interval": (0, 100, "null"),
    "checkpoint.finetune": ("true", "false"),
    "checkpoint.use_persistent_ckpt_worker": ("true", "false"),
    "dataset.num_workers": (0, 4),
    "dataset.split": ("[9999,8,2]", '"99,1,0"', "foo"),
    "dataset.blend": ("null",),
    "dataset.dataloader_type": ("single", "batch", "null"),
    "dataset.reset_position_ids": ("true", "null"),
    "dataset.data_path": ("null", "/tmp/no_such_data"),
    "optimizer.weight_decay": (0.1, 0),
    "optimizer.clip_grad": (1.0, 0),
    "optimizer.min_lr": (0, 0.001, 1),
    "optimizer.main_params_dtype": ("torch.float32", "float16"),
    "optimizer.exp_avg_sq_dtype": ("torch.bfloat16", "torch.float32"),
    "optimizer.store_param_remainders": ("true", "false"),
    "scheduler.start_weight_decay": ("null", 0.1, -1),
    "scheduler.end_weight_decay": (0.033, 0.2),
    "scheduler.override_opt_param_scheduler": ("true", "false"),
    "scheduler.use_checkpoint_opt_param_scheduler": ("true", "false"),
    "scheduler.lr_wsd_decay_iters": ("null", 100),
    "scheduler.lr_decay_samples": ("null", 1000),
    "ddp.align_param_gather": ("true", "false"),
    "ddp.pad_buckets_for_high_nccl_busbw": ("true", "false"),
    "ddp.keep_fp8_transpose_cache": ("true", "false"),
    "ddp.fsdp_double_buffer": ("true", "false"),
    "ddp.delay_wgrad_compute": ("true", "false"),
    "ddp.disable_symmetric_registration": ("true", "false"),
    "ddp.preserve_fp32_weights": ("true", "false"),
    "dist.lazy_mpu_init": ("true", "false"),
    "dist.lazy_init": ("true", "false"),
    "dist.distributed_timeout_minutes": (10, 30),
    "dist.use_sharp": ("true", "false"),
    "dist.enable_megatron_core_experimental": ("true", "false"),
    "rng.seed": (1, 1234),
    "rng.data_parallel_random_init": ("true", "false"),
    "train.num_epochs": (1, "null"),
    "train.exit_interval": (100, "null"),
    "train.empty_unused_memory_level": (0, 2, 3),
    "train.check_weight_hash_across_dp_replicas_interval": ("null", 10),
    "train.decrease_batch_size_if_needed": ("true", "false"),
    "train.skip_train": ("true", "false"),
    "profiling.profile_ranks": ("[0]", "[0,1]"),
    "logger.tensorboard_dir": ("null", "/tmp/tensorboard"),
    "logger.wandb_project": ("null", "foo"),
    "tokenizer.tokenizer_type": ("NullTokenizer", "HuggingFaceTokenizer"),
    "rerun_state_machine.rerun_mode": ("disabled", "validate_results"),
}
GROUPS = (SIZES, BATCH, EXPERTS, OVERLAPS, GRAPHS, MEMORY, PRECISION, PARALLEL)
SETTINGS: dict[str, Sequence[Any]] = {path: values for group in GROUPS for path, values in group.items()}

# What a user turns on together. The first that Bridge refuses hides the rest, so that mixtures start from one of these.
NO_RECOMPUTE = ("model.recompute_granularity=null", "model.recompute_method=null", "model.recompute_num_layers=null")
TE_GRAPHS = ("model.cuda_graph_impl=transformer_engine", "rng.te_rng_tracker=true")
STARTS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    NO_RECOMPUTE,
    (*NO_RECOMPUTE, *TE_GRAPHS),
    (*NO_RECOMPUTE, *TE_GRAPHS, "model.cuda_graph_scope=[moe_router,moe_preprocess]"),
    (*NO_RECOMPUTE, "model.pipeline_model_parallel_size=1", "model.virtual_pipeline_model_parallel_size=null"),
    (
        *NO_RECOMPUTE,
        "model.pipeline_model_parallel_size=1",
        "model.virtual_pipeline_model_parallel_size=null",
        "model.moe_token_dispatcher_type=alltoall",
        f"++comm_overlap._target_={OVERLAP}",
        "++comm_overlap.tp_comm_overlap=false",
        "++comm_overlap.overlap_moe_expert_parallel_comm=true",
    ),
    ("model.recompute_granularity=selective", "model.recompute_method=null", "model.recompute_num_layers=null"),
    ("mixed_precision=bf16_with_mxfp8_mixed",),
    ("mixed_precision=bf16_with_fp8_current_scaling_mixed",),
    ("model.moe_token_dispatcher_type=flex", "model.moe_flex_dispatcher_backend=hybridep"),
    ("model.pipeline_model_parallel_size=4", "model.virtual_pipeline_model_parallel_size=2"),
    ("model.context_parallel_size=2", "model.pipeline_model_parallel_size=1", *NO_RECOMPUTE),
)
ODD_VALUES = (
    "foo",
    "'4'",
    "[1,2]",
    "[]",
    "true",
    "false",
    "null",
    "0",
    "1",
    "7",
    "-1",
    "1.5",
    "{a:1}",
    "4.0",
    "''",
    "[foo]",
)
ODD_SECTIONS = (
    "model=null",
    "model=foo",
    "train=null",
    "ddp={bucket_size:1}",
    "comm_overlap=foo",
    "comm_overlap={}",
    "comm_overlap={tp_comm_overlap:false}",
    "+comm_overlap={tp_comm_overlap:true}",
    "mixed_precision={bf16:true}",
    "mixed_precision=[bf16_mixed]",
    "mixed_precision=true",
    "mixed_precision=7",
    "optimizer=adam",
    "~comm_overlap",
    "~mixed_precision",
    "~profiling",
    "~straggler",
    "~ft",
    "~model",
    "~model.num_layers",
    "~model.recompute_granularity",
    "~model.recompute_granularity=full",
    "~env_vars",
    "~peft",
    "~logger",
    "~dataset",
    "~foo",
    "~model.foo",
    "foo.bar=1",
    "+foo.bar=1",
    "++foo.bar=1",
    "+foo=1",
    "model.foo=1",
    "+model.foo=1",
    "++model.foo=1",
    "modle.num_layers=4",
    "ft={}",
    "ft.calc_ft_timeouts=true",
    "++ft.enable_ft_package=true",
    "++inprocess_restart.enabled=true",
    "inprocess_restart={enabled:true}",
    "profiling=null",
    "rng=null",
    "validation=null",
    "scheduler=null",
    "dist={use_megatron_fsdp:false}",
    "model={tensor_model_parallel_size:2}",
    "train={micro_batch_size:1,global_batch_size:8}",
    "tokenizer=null",
    "checkpoint=null",
    "logger=null",
    "env_vars=null",
    "env_vars={NCCL_ALGO:Ring}",
    "++env_vars.FOO=bar",
    "+env_vars.FOO=[1]",
    "++env_vars.FOO=null",
    "nvrx_straggler=null",
    "peft=lora",
    "++peft.dim=8",
)
SYNTAX = (
    "{path}={value}",
    "++{path}={value}",
    "+{path}={value}",
    "~{path}",
    "~{path}={value}",
    "{path}='{value}'",
    '{path}="{value}"',
    "{path}= {value}",
    "{path} = {value}",
    " {path}={value}",
    "{path}={value} ",
    "{path}=",
    "{path}",
    "--{path}={value}",
    "{path}:{value}",
    "{path}=={value}",
    "{path}={value},{value}",
    "{path}=[{value}",
    "{path}={value}]",
    "{path}=({value})",
    "{path}=[{value}]",
    "{path}=[{value},]",
    "{path}={{{value}}}",
    "{path}='{value}",
    "{path}=int({value})",
    "{path}=str({value})",
    "{path}=range(1,3)",
    "{path}=choice({value},{value})",
    "{path}=${{model.tensor_model_parallel_size}}",
    "{path}=${{{path}}}",
    "{path}=${{foo.bar}}",
    "{path}@foo={value}",
    ".{path}={value}",
    "{path}.={value}",
    "{path}.foo={value}",
    "{path}=\\{value}",
    "{path}=#{value}",
    "{path}={value};",
    "{path}=NULL",
    "{path}=True",
    "{path}=None",
    "{path}=yes",
    "{path}=4_096",
    "{path}=1e3",
    "{path}=1_0.5",
    "{path}=0x10",
    "{path}=08",
    "{path}=+4",
    "{path}=inf",
    "{path}=nan",
    "{path}=2*2",
    "{path}=a b",
    '{path}="it\'s"',
    "+++{path}={value}",
    "~~{path}",
    "{path}={{a:1",
    "{path}='[a,b]'",
    "{path}=[a,'b']",
    "{path}=[[a],[b]]",
    "",
    "=",
    "={value}",
)
PLAIN_SYNTAX = SYNTAX[:8]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a case runs: the GPU, as its driver names it, and what it can do; the release of Transformer Engine."""

    gpu: str
    capability: tuple[int, int]
    transformer_engine: str = "2.14.0"


H100 = Machine("NVIDIA H100 80GB HBM3", (9, 0))


@dataclass(frozen=True, slots=True)
class OverrideCase:
    """Overrides of one base configuration: the ``base``'s number among those of the release."""

    kind: str
    base: int
    overrides: tuple[str, ...]
    machine: Machine = H100
    environment: Mapping[str, str] = field(default_factory=dict)


def make_cases(release: str, seed: int, count: int, bases: int) -> list[OverrideCase]:
    """``count`` cases for ``bases`` base configurations; half of them are mixtures of 2 to 8 settings."""
    random_source = random.Random(f"{release} {seed}")
    paths = bridge_schema(release).paths()
    makers = (
        ("setting", 12, lambda source: (_spell(source, source.choice(sorted(SETTINGS))),)),
        ("type", 14, lambda source: (_mutate(source, paths),)),
        ("syntax", 10, _odd_syntax),
        ("section", 6, lambda source: (source.choice(ODD_SECTIONS),)),
        ("pair", 18, lambda source: _mix(source, 2, ())),
        ("mixture", 40, lambda source: _mix(source, source.randint(2, 8), source.choice(STARTS))),
        ("category", 60, _mix_category),
    )
    weights = [weight for _, weight, _ in makers]
    cases = []
    for _ in range(count):
        kind, _, maker = random_source.choices(makers, weights)[0]
        cases.append(OverrideCase(kind, random_source.randrange(bases), tuple(maker(random_source))))
    return cases


def _mix(source: random.Random, count: int, start: tuple[str, ...]) -> tuple[str, ...]:
    """``count`` settings after ``start``, half of them of one group: what Bridge compares with each other is near."""
    group = source.choice(GROUPS)
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        pool = group if source.random() < 0.5 else source.choice(GROUPS)
        chosen[source.choice(sorted(pool))] = None
    odd = _spell(source, source.choice(sorted(SETTINGS)), ODD_VALUES) if source.random() < 0.08 else None
    return (*start, *(_spell(source, path) for path in chosen), *((odd,) if odd else ()))


def _mix_category(source: random.Random) -> tuple[str, ...]:
    """Two to six settings that Bridge judges together, now and then quoted or with a removal."""
    starts, paths = CATEGORIES[source.choice(sorted(CATEGORIES))]
    chosen = source.sample(sorted(paths), min(len(paths), source.randint(1, 6)))
    words = [_spell(source, path, VALUES.get(path, ())) for path in chosen]
    if source.random() < 0.08:
        path, _, value = words[0].partition("=")
        words[0] = f'{path}="{value}"' if '"' not in value else words[0]
    removed = (source.choice(REMOVED),) if source.random() < 0.06 else ()
    return (*source.choice(starts), *words, *removed)


def _spell(source: random.Random, path: str, values: Sequence[Any] = ()) -> str:
    """The setting, plain in most cases; settings of a section that may not be there are appended in most cases."""
    may_miss = path.startswith(
        ("comm_overlap.", "env_vars.", "ft", "mixed_precision.", "inprocess", "nvrx", "tensor_i")
    )
    prefix = source.choices(("", "++", "+"), (2, 8, 1) if may_miss else (18, 2, 0.2))[0]
    return f"{prefix}{path}={source.choice(values or SETTINGS[path])}"


def _mutate(source: random.Random, paths: Sequence[str]) -> str:
    """A value of another kind, or one that is none of the field's, for a setting or for any field of the release."""
    path = source.choice(sorted(SETTINGS)) if source.random() < 0.5 else source.choice(paths)
    return _spell(source, path, ODD_VALUES)


def _odd_syntax(source: random.Random) -> tuple[str, ...]:
    path = source.choice(sorted(SETTINGS))
    form = source.choice(SYNTAX)
    return (form.format(path=path, value=source.choice(SETTINGS[path])),)
