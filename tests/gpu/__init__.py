"""What only a CUDA device can show, in the order of worth; `make gpu` runs it all. None of it has been run on one yet.

On a machine whose Python has its own torch, install efprof into that first, without touching its packages:
`python3 -m pip install --no-deps --no-build-isolation -e .`; then `make gpu GPU_PYTHON=python3`. Tables and reports
are left in the folder that the environment variable OUT names, or in reports/gpu.
"""
