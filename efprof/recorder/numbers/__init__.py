"""Losses, gradients and the gradient scaler, read without waiting for the device."""
