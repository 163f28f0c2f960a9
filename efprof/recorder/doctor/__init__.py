"""What can be recorded on this machine and what not, and why; nothing here makes a CUDA context."""
