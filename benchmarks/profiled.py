"""A loop under torch.profiler as people usually set it: stacks, shapes and memory, all of its steps."""

import json
import sys

import torch

from benchmarks.loops import run

if __name__ == "__main__":
    with torch.profiler.profile(with_stack=True, record_shapes=True, profile_memory=True):
        times = run(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(times))
