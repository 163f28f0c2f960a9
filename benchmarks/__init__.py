"""Measurements that print ratios, made side by side in one run; nothing asserts them."""
