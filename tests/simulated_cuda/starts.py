"""Programs that show what starts CUDA in a process that has not used it: each begins in a fresh one."""

_SAYS = """
import torch

def is_started():
    return torch.cuda.is_initialized()

{calls}
print(is_started())
"""

_STARTS_NOTHING = {
    "questions": "torch.cuda.is_available(); torch.cuda.device_count(); torch.cuda.get_allocator_backend()",
    "seeds": "torch.manual_seed(3); torch.cuda.manual_seed_all(4)",
    "an event that is not recorded": "torch.cuda.Event().query()",
    "memory": "torch.cuda.empty_cache(); torch.cuda.memory_stats(); torch.cuda.memory_allocated()",
    "captures": "torch.cuda.is_current_stream_capturing()",
    "a call that waits for the start": "torch.cuda._lazy_call(lambda: print('called'))",
}
_STARTS = {
    "a tensor": "torch.ones(1, device='cuda')",
    "a copy": "torch.ones(1).to('cuda')",
    "the current device": "torch.cuda.current_device()",
    "another device": "torch.cuda.set_device(0)",
    "the current stream": "torch.cuda.current_stream()",
    "a record": "torch.cuda.Event().record()",
    "synchronize": "torch.cuda.synchronize()",
    "properties": "torch.cuda.get_device_properties(0)",
    "free memory": "torch.cuda.mem_get_info()",
    "a block": "torch.cuda.device(0).__enter__()",
    "a seed that waited": "torch.cuda.manual_seed_all(4); torch.cuda.init(); assert torch.cuda.initial_seed() == 4",
}

LAZY_STARTS = {name: _SAYS.format(calls=calls) for name, calls in (_STARTS_NOTHING | _STARTS).items()}
"""Each prints whether CUDA was started at its end."""


def told_of_a_lazy_start(name: str) -> list[str]:
    """What the program of this name prints."""
    return [str(name in _STARTS)]
