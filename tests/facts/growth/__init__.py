"""What grows, who keeps it and which line feeds it."""
