"""What grows from step to step, who keeps it, and which line feeds it: leaks, cycles, graphs, uncleared gradients."""
