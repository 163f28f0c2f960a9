"""The user's command with the recorder inside."""
