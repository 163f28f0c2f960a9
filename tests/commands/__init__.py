"""The subcommands of efprof."""
