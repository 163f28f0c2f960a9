"""What a step would take without a fault: a replay of what was recorded."""
