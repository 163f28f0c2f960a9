"""What grows from step to step, who keeps it, and which line feeds it: leaks, cycles, graphs, uncleared gradients.

`leaks` puts both kinds of evidence together: `kept_growth` and `kept`, what was counted and seen; `memory_growth` and
`trend`, the memory after steps. `grown_line` tells of a step's time that grows.
"""
