"""What a run recorded on a CPU would reserve on a GPU: an estimate, made on demand."""
