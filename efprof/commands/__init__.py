"""One file per subcommand: it parses, calls and prints; no logic."""
