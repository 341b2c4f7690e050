"""Which arguments of SGLang change nothing in an arena, and why. Every other argument counts, one of tomorrow too.

An argument is in the tables when the code that builds a model and fills its tensors (SGLang's layers, models, loaders
and configurations) does not read it, or reads it for something that leaves no trace in a module; a contract test looks
at SGLang's source. A name too few costs a needless load, a name too many could give an engine wrong bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedEngine

LONGEST: Final = 200
"""Characters of a value that stands in an identity as it is; of a longer one its digest stands there."""

_NOT_READ: Final[tuple[tuple[str, str], ...]] = (
    (
        "an address or a port",
        "port nccl_port dist_init_addr gated_launch_port grpc_port smg_http_sidecar_port engine_info_bootstrap_port "
        "fastapi_root_path disaggregation_bootstrap_port encoder_bootstrap_port encoder_urls encoder_register_urls "
        "otlp_traces_endpoint otlp_service_name load_publish_endpoint forward_pass_metrics_ipc_name "
        "forward_pass_metrics_worker_id weight_cache_timeout",
    ),
    (
        "a secret, or how clients prove who they are; it must not stand in an identity",
        "api_key admin_api_key ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password enable_ssl_refresh "
        "watermark_key watermark_key_b",
    ),
    (
        "how requests come in and answers go out",
        "enable_http_worker_reuseport smg_grpc_mode grpc_mode grpc_response_timeout_secs grpc_worker_threads sidecar "
        "sidecar_args skip_server_warmup warmups enable_http2 http2_max_concurrent_streams "
        "http2_initial_connection_window_size served_model_name weight_version file_storage_path enable_cache_report "
        "return_input_ids return_output_ids enable_response_store stream_interval batch_notify_size "
        "stream_response_default_include_usage incremental_streaming_output enable_streaming_session tool_server "
        "asr_max_buffer_seconds asr_max_concurrent_sessions allow_auto_truncate preferred_sampling_params",
    ),
    (
        "what becomes of text before and after the model",
        "skip_tokenizer_init tokenizer_backend tokenizer_worker_num detokenizer_worker_num trust_request_chat_template "
        "hf_chat_template_name completion_template default_chat_template_kwargs reasoning_parser strip_thinking_cache "
        "enable_strict_thinking tool_call_parser grammar_backend constrained_json_whitespace_pattern "
        "constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt disable_outlines_disk_cache "
        "enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout "
        "enable_tokenizer_batch_encode disable_tokenizer_batch_decode",
    ),
    (
        "logs, metrics and traces",
        "log_level log_level_http log_requests log_requests_level log_requests_format log_requests_target "
        "uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics enable_mfu_metrics "
        "enable_metrics_for_all_schedulers load_snapshot_publish_interval tokenizer_metrics_custom_labels_header "
        "tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token "
        "bucket_inter_token_latency bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets "
        "gc_warning_threshold_secs decode_log_interval enable_request_time_stats_logging kv_events_config "
        "enable_forward_pass_metrics enable_trace trace_modules export_metrics_to_file export_metrics_to_file_dir "
        "stat_loggers spec_trace_dir expert_balancedness_report_mode expert_distribution_recorder_buffer_size",
    ),
    (
        "which requests run when",
        "max_queued_requests prefill_decode_interval prefill_decode_interval_min_bs prefill_max_requests "
        "schedule_policy enable_priority_scheduling disable_priority_preemption default_priority_value "
        "abort_on_priority_when_disabled schedule_low_priority_values_first priority_scheduling_preemption_threshold "
        "retraction_policy schedule_conservativeness disable_overlap_schedule num_continuous_decode_steps "
        "scheduler_recv_interval enable_prefill_delayer prefill_delayer_max_delay_passes "
        "prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets "
        "prefill_delayer_wait_seconds_buckets prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms "
        "min_free_slots_delay load_balance_method pp_max_micro_batch_size pp_async_batch_depth",
    ),
    (
        "how large the caches beside the weights are, and what stays in them",
        "max_total_tokens swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set swa_prefix_tails "
        "max_mamba_cache_size mamba_full_memory_ratio radix_eviction_policy _radix_eviction_policy_explicitly_set "
        "radix_eviction_policy_config enable_session_radix_cache radix_cache_backend enable_hierarchical_cache "
        "hicache_host_memory_mode hicache_ratio hicache_size hicache_host_memory_fraction hicache_write_policy "
        "hicache_io_backend hicache_mem_layout hicache_storage_backend hicache_storage_prefetch_policy "
        "hicache_storage_backend_extra_config hicache_storage_prefetch_retry_poll_interval "
        "hicache_storage_prefetch_retry_max_attempts enable_lmcache lmcache_config_file enable_flexkv "
        "flexkv_config_file",
    ),
    (
        "how KV caches travel between engines",
        "disaggregation_decode_allocation_policy disaggregation_transfer_backend disaggregation_enable_kv_checksum "
        "disaggregation_ib_device disaggregation_decode_enable_radix_cache "
        "disaggregation_decode_enable_offload_kvcache disaggregation_decode_retraction_backup "
        "num_reserved_decode_tokens disaggregation_decode_extra_slots disaggregation_decode_polling_interval "
        "optimistic_prefill_attempts encoder_transfer_backend disaggregation_decode_host_receive_threshold",
    ),
    (
        "graphs are captured after the load",
        "cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_max_bs_decode cuda_graph_max_bs_prefill "
        "cuda_graph_max_seq_len_prefill cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_prefill_max_context "
        "disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph_padding enable_profile_cuda_graph "
        "enable_cudagraph_gc debug_cuda_graph disable_flashinfer_autotune flashinfer_autotune_skip_ops",
    ),
    (
        "how pictures and sound of requests are fetched and prepared",
        "enable_broadcast_mm_inputs_process enable_prefix_mm_cache mm_processor_worker_num mm_io_worker_num "
        "allowed_media_domains media_url_max_file_size_mb mm_preprocess_cache_size_mb trust_mm_content_hashes "
        "enable_mm_global_cache mm_global_cache_backend image_processor_backend disable_fast_image_processor "
        "mm_feature_transport",
    ),
    (
        "how drafted tokens are found and accepted; the algorithm counts",
        "speculative_accept_threshold_single speculative_accept_threshold_acc speculative_use_rejection_sampling "
        "speculative_use_block_verification speculative_adaptive speculative_adaptive_config "
        "speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth speculative_ngram_match_type "
        "speculative_ngram_max_trie_depth speculative_ngram_capacity speculative_ngram_external_corpus_path "
        "speculative_ngram_external_sam_budget speculative_ngram_external_corpus_max_tokens",
    ),
    (
        "how words of an answer are chosen",
        "random_seed enable_custom_logit_processor enable_watermark watermark_config watermark_context_window "
        "watermark_mixing_probability watermark_max_probability watermark_default_enabled watermark_enforce_all",
    ),
    (
        "where processes run, and how they are watched and talk; ranks and sizes count",
        "gpu_id_step node_rank numa_node use_ray gc_threshold watchdog_timeout soft_watchdog_timeout sleep_on_idle "
        "custom_sigquit_handler dist_timeout enable_p2p_check enable_dp_attention_local_control_broadcast "
        "enable_nccl_nvls enable_mscclpp pre_warm_nccl mooncake_ib_device elastic_ep_scale_timeout",
    ),
)

_READ: Final[tuple[tuple[str, str], ...]] = (
    ("where the model's folder lies; its contents count: model, revision and the digests of its files", "model_path"),
    ("it is `private` in every engine of ours", "load_format"),
    ("it counts without FlashBoot's own part: field `loader_extra_config`", "model_loader_extra_config"),
    (
        "how files are read, not what is in them",
        "weight_loader_disable_mmap weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads "
        "weight_loader_drop_cache_after_load download_dir",
    ),
    ("a socket of the weight cache, which is refused", "weight_cache_socket"),
    ("an address; what model code calls `host` is the memory of the host", "host"),
    ("which GPU is the first; read to warm kernels up once per node", "base_gpu_id"),
    ("words around a request; model code reads the templates of tokenizers", "chat_template"),
    ("which defaults a request gets for its sampling", "sampling_defaults"),
    ("read in the forward pass alone, for the size of a workspace", "mem_fraction_static"),
    (
        "sizes of workspaces and of buffers for communication, none of which is a tensor of a module",
        "max_running_requests chunked_prefill_size max_prefill_tokens",
    ),
    ("graphs are captured after the load; model code asks whether one is being captured", "cuda_graph_config"),
    ("graphs are captured after the load; models refuse what they can't capture", "disable_cuda_graph"),
)


def _table(groups: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {name: reason for reason, names in groups for name in names.split()}


READ_BY_MODELS: Final[Mapping[str, str]] = _table(_READ)
"""Harmless, although code of models reads a name like it: argument → reason."""

HARMLESS: Final[Mapping[str, str]] = {**_table(_NOT_READ), **READ_BY_MODELS}
"""Argument of SGLang (field of ServerArgs) → why two engines that differ in it may share an arena."""


def counted(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """`arg.NAME` → value, of all arguments that may change an arena and are not at SGLang's default.

    Raises UnsupportedEngine for a value that can't be compared between processes.
    """
    found = {}
    for name, value in values.items():
        if name not in HARMLESS and (name not in defaults or value != defaults[name]):
            found[f"arg.{name}"] = text_of(name, value)
    return found


def text_of(name: str, value: Any) -> str:
    """The value as a short text that is the same in every process."""
    plain = _plain(name, value)
    text = plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    fields = _fields(value)
    if fields is not None:
        return {field: _plain(name, getattr(value, field)) for field in fields}
    return _collection(name, value)


def _fields(value: Any) -> Sequence[str] | None:
    """Names of the fields of a record; None of anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)]
    fields: Sequence[str] | None = getattr(value, "__struct_fields__", None)  # msgspec, as SGLang's records are
    return fields


def _collection(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(name, each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(text_of(name, each) for each in value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(name, each) for each in value]
    raise UnsupportedEngine(
        f"argument {name} is a {type(value).__name__}, which FlashBoot can't compare between engines; leave it out"
    )
