"""Which of the recorder's tests run on a simulated CUDA device as well, and why the others do not.

Tests that record a program in a process of its own stay on the CPU: there the simulation is not. Whole programs are
recorded on it by tests/simulated_cuda.
"""

from pathlib import Path

import pytest

RUN = frozenset(
    {
        "test_device_data", "test_discarded_passes", "test_evaluations", "test_light_steps", "test_loop",
        "test_loss_scaling", "test_numbers", "test_odd_programs", "test_scalar_reads", "test_scaled_clips",
        "test_untrained_parameters", "test_windows",
    }
)  # fmt: skip

LEFT_OUT = {
    "has devices of its own": (
        "test_cuda_graphs", "test_cuda_memory", "test_device_time", "test_devices",
        "test_gradient_clearing", "test_late_numbers",
    ),
    "shows what Python and autograd do, which no device changes": (
        "test_backward_calls", "test_duplicated_logs", "test_elements", "test_hosts", "test_iterators",
        "test_late_clips", "test_library_calls", "test_loop_faults", "test_loop_hooks", "test_module_calls",
        "test_more_hooks", "test_optimizers", "test_pickles", "test_schedule_moves", "test_stalls",
        "test_step_counters", "test_training_modes", "test_what_fails_alone", "test_writing",
    ),
    "shows which thread's steps they are; tests/simulated_cuda has the threads of a device": ("test_threads",),
    "asks when a window opens; that a device's late numbers open one is shown by test_late_numbers": (
        "test_triggers", "test_window_sizes",
    ),
    "goes by the clock, or by the host's heap and processes": (
        "test_cycles", "test_host_memory", "test_long_steps", "test_ready_threads", "test_stage_lengths",
        "test_worker_memory", "test_worker_samples",
    ),
    "records programs in processes of their own": (
        "test_collectors", "test_compilation", "test_environment", "test_holders", "test_promises",
    ),
}  # fmt: skip
"""Why modules that record in this process stay on the CPU."""

_NOT_COMPARED = "values that lie on a device are not compared, which would wait for it"
_NOT_COUNTED = "bad numbers are not counted on a device, which would wait for it"
_NOT_NAMED = "when the device has told, backward has freed the graph that names the operation"
_NOT_COMPILED = "torch.compile asks the driver itself, which aborts the process"
_SEEN_TWICE = "a profiler sees an operator once more, as the simulation calls it"

FAIL = {
    "test_discarded_passes::test_passes_that_are_cleared_before_the_next_of_their_line_are_counted[in place]": (
        _NOT_COMPARED
    ),
    "test_evaluations::test_memory_is_read_before_it_after_each_batch_and_at_its_end": (
        "the allocator has kept the peak itself, which no reading has"
    ),
    "test_evaluations::test_one_that_builds_graphs_without_a_loader_is_seen[evaluate_compiled]": (_NOT_COMPILED),
    "test_light_steps::test_the_operation_that_makes_a_loss_not_finite_in_a_light_step_is_named": _NOT_NAMED,
    "test_loss_scaling::test_a_skipped_step_has_its_bad_gradients_counted": _NOT_COUNTED,
    "test_numbers::test_nan_and_inf_in_gradients_are_counted": _NOT_COUNTED,
    "test_numbers::test_a_learning_rate_that_is_a_tensor_is_read_in_every_step": (
        "one that lies on a device is left alone"
    ),
    "test_numbers::test_a_bad_loss_is_traced_to_the_operation_that_made_it": _NOT_NAMED,
    "test_numbers::test_bad_data_are_told_from_the_layers_that_pass_them_on": _NOT_NAMED,
    "test_numbers::test_a_parameter_that_an_update_turned_bad_is_told_and_is_no_data": _NOT_NAMED,
    "test_numbers::test_a_training_that_goes_on_with_nan_is_not_slowed_down_by_counting": _NOT_COUNTED,
    "test_odd_programs::test_an_update_that_leaves_no_trace_in_the_parameters_version_is_seen": _NOT_COMPARED,
    "test_odd_programs::test_gradients_of_transformed_functions_and_of_one_tensor_are_understood": (
        "torch.func and the simulation's dispatch mode do not go together"
    ),
    "test_scalar_reads::test_a_function_that_calls_nonzero_compiles_as_without_the_recorder": (_NOT_COMPILED),
    "test_scalar_reads::test_in_a_run_on_a_device_only_what_must_be_waited_for_is_counted": (
        "brings a device of its own, beside a loss on the CPU"
    ),
    "test_windows::test_an_evaluation_puts_a_window_off_or_ends_it": _SEEN_TWICE,
}
"""Tests that say what is true on a CPU alone: `module::function`, or `[case]` behind it.
Each must fail on a device, or may not run there.
"""

_RECORDED_ELSEWHERE = frozenset({"record_script", "record_command", "begin", "plain"})
"""In another process, or once for several tests."""


def runs_there(test: pytest.Metafunc) -> bool:
    """Whether it records in this process, and its module is one of those."""
    names = {*test.function.__code__.co_names, *test.fixturenames}
    return Path(test.module.__file__).stem in RUN and names.isdisjoint(_RECORDED_ELSEWHERE)


def may_run(reason: str) -> bool:
    """Whether one that fails for this reason leaves the process alive."""
    return reason != _NOT_COMPILED


def why_not(test: pytest.Function) -> str | None:
    """Why this one fails there."""
    name = f"{test.path.stem}::{test.originalname}"
    listed = ((key.partition("["), reason) for key, reason in FAIL.items())
    return next((why for (key, _, case), why in listed if key == name and case.removesuffix("]") in test.name), None)
