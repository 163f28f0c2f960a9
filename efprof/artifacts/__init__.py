"""The run folder on disk: its layout, its schema version, one reader per file.

`runs` finds a run by its name, `files` writes and reads whole files and lines, `foreign` makes a run of files that
efprof did not record. The docstring of a reader names the files that it reads.
"""
