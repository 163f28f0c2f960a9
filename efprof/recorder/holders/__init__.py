"""Who keeps tensors alive: counted, watched as it grows, and found in garbage."""
