"""Pictures as plain data, and as plotly figures."""
