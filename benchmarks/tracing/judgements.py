"""Whether what a report says first of a file is right: judged by hand, with the oracle's figures beside it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """It holds while this audit leads; none where nothing was found."""

    lead: str
    answer: str
    reason: str = ""


JUDGEMENTS = {
    "hta__amd_trace__mi250_minitoy_train_ROCm6_2_kineto": Judgement(lead="host_computes", answer="yes"),
    "hta__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace": Judgement(
        lead="", answer="yes", reason="a dozen events of a step are in it"
    ),
    "hta__critical_path__alexnet__benchmark_result_2869224_1695835535_trace": Judgement(
        lead="host_computes", answer="yes"
    ),
    "hta__critical_path__cuda_event_sync__event_sync_trace": Judgement(lead="", answer="yes"),
    "hta__critical_path__simple_add__benchmark_result_493459_1694039959_trace": Judgement(
        lead="host_computes", answer="yes"
    ),
    "hta__cupti_profiler__benchmark_result_924719_1679055439_trace": Judgement(
        lead="host_computes", answer="yes", reason="it has launches and no work of the device"
    ),
    "hta__df_index_resolver__df_index_resolver": Judgement(
        lead="launch_bound", answer="yes", reason="communication, 21 %, comes second"
    ),
    "hta__nccl_parser_config__nccl_data": Judgement(lead="launch_bound", answer="yes"),
    "hta__negative_queue_length_values_check__rank0": Judgement(
        lead="exposed_communication",
        answer="weak",
        reason="63 % of the time lies between launches and kernels: others are not in the file",
    ),
    "hta__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace": Judgement(lead="", answer="yes"),
    "hta__trace_diff__control__control": Judgement(lead="exposed_communication", answer="yes"),
    "hta__trace_diff__test__test": Judgement(lead="", answer="yes"),
    "hta__triton_example__triton_example": Judgement(lead="", answer="yes", reason="13 s of the host are not recorded"),
    "kineto_tb__resnet50_autograd_api_num_workers_0": Judgement(lead="input_stall", answer="yes"),
    "kineto_tb__resnet50_num_workers_0_worker0.1623143089861.pt.trace": Judgement(lead="input_stall", answer="yes"),
    "kineto_tb__resnet50_num_workers_4_worker0.1623212756351.pt.trace": Judgement(
        lead="device_synchronisation", answer="yes", reason="small, and said to be"
    ),
    "marcalph_kernelforge__T4_notebook": Judgement(lead="host_computes", answer="yes"),
    "param__dlrm_8_ranks": Judgement(lead="exposed_communication", answer="yes"),
    "param__linear_first_step": Judgement(lead="launch_bound", answer="yes"),
    "param__resnet_uneven_loader": Judgement(lead="input_stall", answer="yes"),
    "pytorch_ao__quant_vit_graphs": Judgement(lead="", answer="yes"),
    "tracelens__b200__eager_trace": Judgement(lead="launch_bound", answer="yes"),
    "tracelens__h100__Falconsai_nsfw_image_detection__1016002": Judgement(lead="launch_bound", answer="yes"),
    "tracelens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005": Judgement(lead="", answer="yes"),
    "tracelens__h100__gaunernst_bert-small-uncased__1016001": Judgement(lead="launch_bound", answer="yes"),
    "tracelens__h100__timesformer_preprocessing": Judgement(lead="host_computes", answer="yes"),
    "tracelens__mi210__gpu_only_trace__gpu_only_trace": Judgement(lead="", answer="yes"),
    "tracelens__mi300__Qwen_Qwen1.5-0.5B-Chat__1016005": Judgement(
        lead="device_synchronisation",
        answer="weak",
        reason="the wait is that of the program that measures; the device is busy 90 %",
    ),
    "tracelens__mi300__ddp_resnet18_no_caching": Judgement(lead="host_computes", answer="yes"),
    "tracelens__mi300__resnet_act_checkpoint": Judgement(
        lead="exposed_communication", answer="yes", reason="one rank alone does not tell waiting from moving"
    ),
    "tracelens__mi300__sglang_decode_cut": Judgement(lead="", answer="yes"),
    "tracelens__mi300__xdit_flux": Judgement(lead="host_computes", answer="yes"),
    "tracelens__torch_compile_triton__trace": Judgement(lead="", answer="yes"),
    "Constructor-Sun+code_location__52e52b2__memory_snapshot": Judgement(lead="out_of_memory", answer="yes"),
    "HugePandaCoder+octree-nca-groupeq__3e8aa21__mem_snapshots_inference2_peso_oct": Judgement(lead="", answer="yes"),
    "MAGMA27+assignment2-systems__15883f2__memory_snapshot": Judgement(lead="", answer="yes"),
    "MercuryB1+SQAttn__126d2e6__cuda_memory_snapshot": Judgement(lead="cache_flush_in_loop", answer="yes"),
    "Muduard+LayoutEditing__33ade60__dump_snapshot": Judgement(
        lead="", answer="yes", reason="it has neither history nor stacks"
    ),
    "SunnySood80+unsupervised_finetune_resnet50__a652958__dump_snapshot": Judgement(lead="", answer="yes"),
    "Wedsonlin+assignment2-systems__results_medium_1024_training_memory_snapshot": Judgement(lead="", answer="yes"),
    "Wedsonlin+assignment2-systems__results_medium_128_training_memory_snapshot": Judgement(lead="", answer="yes"),
    "Wedsonlin+assignment2-systems__results_medium_256_inference_memory_snapshot": Judgement(lead="", answer="yes"),
    "Wedsonlin+assignment2-systems__results_medium_512_training_memory_snapshot": Judgement(lead="", answer="yes"),
    "Yiyi-philosophy__oom_without_history": Judgement(lead="", answer="yes"),
    "albi2+thesis-text-to-SQL__dump_snapshot": Judgement(lead="", answer="yes"),
    "angelolmn+HitsBE__1854a6c__my_snapshot": Judgement(lead="", answer="yes"),
    "bcrafton+assignment2-systems__0c0e8a7__memory_snapshot": Judgement(lead="", answer="yes"),
    "facebookresearch+mosaic__test_snapshots_output": Judgement(
        lead="", answer="weak", reason="its events do not fit its segments: 2.10 GiB by these, of which nothing is left"
    ),
    "kkaitlyn111+cs336-a2-systems__memory_ctx256_fullstep_": Judgement(lead="", answer="yes"),
    "notHanmin+assignment2-systems__bbd2972__memory_snapshot_forward": Judgement(lead="", answer="yes"),
    "notHanmin+assignment2-systems__bbd2972__memory_snapshot_forward_without_mixed": Judgement(lead="", answer="yes"),
    "silmont2000+assignment2-systems__mem_snapshot": Judgement(lead="fragmented_reserve", answer="yes"),
    "silmont2000+assignment2-systems__memory_forward_bf16_128": Judgement(lead="", answer="yes"),
    "silmont2000+assignment2-systems__memory_forward_fp32_128": Judgement(lead="", answer="yes"),
}
