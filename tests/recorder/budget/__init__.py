"""What recording may cost, and light steps."""
