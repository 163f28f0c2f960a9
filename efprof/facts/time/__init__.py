"""Where within a step time goes, by the user's line: all that is told from traces.

`trace_windows` finds the steps of a trace, `call_paths` what every microsecond was spent under, `time_use` the tables.
Of a device: `device_lanes`, `host_waits`, `launches`, `collectives`. The other modules serve one question each.
"""
