"""`python -m efprof`, for environments whose scripts are not on PATH."""

from efprof.cli import main

main()
