"""Callbacks for frameworks that own the training loop: they start a recording and mark its steps exactly.

None is needed under `efprof record`, which finds the steps of Lightning, the Hugging Face Trainer and Accelerate by
itself. A callback adds the framework's own word for where a step ends, and a recording without a command around it.
Accelerate leaves the loop to the user: `with efprof.record():` around it does the same.
"""
