"""Small real training programs with exactly one fault each, and a healthy twin: what the audits are worth."""
