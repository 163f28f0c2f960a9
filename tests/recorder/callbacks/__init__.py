"""Callbacks for Lightning and transformers."""
