"""The user's source code as it ran: lines, and the syntax at a known line."""
