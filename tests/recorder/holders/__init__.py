"""Who keeps tensors alive."""
