"""Pictures as plain data, and as plotly figures.

`evidence_charts` has those of a finding, `timeline_charts` those of every run; `pictures` hands both to plotly.
"""
