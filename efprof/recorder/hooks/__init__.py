"""What is put into torch from outside and taken out again; compiled code and CUDA graphs."""
