"""What only a CUDA device can show. None of it has been run on one yet.

`make gpu` runs it all, and the few tests of a device elsewhere; `make gpu-minutes` runs the part that fits in ten
minutes. Both take GPU_PYTHON=python3 where the machine's Python has its own torch, and need no installation of efprof.
Tables and reports are left in the folder that the environment variable OUT names, or in reports/gpu; small runs, for
tests on machines without a device, in its folder runs. EFPROF_TESTS_MAX_WAIT_S bounds the waits of tests.

With tests/simulated_cuda/at_start and this project on PYTHONPATH the same tests run on the simulated device, and the
programs that they record do. What needs the driver, kernels in a trace or a compiler fails there.

The files run in the order of their numbers, and take about so many minutes on an H100. That is reckoned (6 s for each
program that is started, the device's part beside it) and not measured; `--durations=40` tells.

1. The main job 0.7, 2. always-on recording 0.5, 3. snapshots 1, 4. overhead 2.5, 5. what-if 1, 6. energy_flow 3,
7. casebook 2, 8. threads and graphs 0.5, 9. devices 0.8, 10. out of memory 1.5, 11. device times 1,
12. distributed 0.5 (1.5 more with two devices), 13. loaders 0.3, 14. triggers and holders 0.8,
15. graphs and compiled 1.5, 16. expandable segments 0.2, 17. what is simulated 0.3, 18. turns 1, 19. hunt 0.5,
20. fit and failures 1: 21 minutes in all, and 23 with two devices.
"""
