"""Callbacks for frameworks that own the training loop: they start a recording and mark its steps exactly.

None is needed under `efprof record`, which finds the steps of all three frameworks by itself: of Lightning,
the Hugging Face Trainer and a loop prepared by Accelerate every step, stage and micro-batch is right without help
(`tests/scripts/` holds one program of each). What a callback adds is the framework's own word for where a step
ends, and a recording that starts and ends with the training, without a command around it. Accelerate leaves the loop
to the user, so there is no callback for it: `with efprof.record():` around the loop does the same.
"""
