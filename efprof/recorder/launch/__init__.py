"""The user's command with the recorder inside: how it starts, which signals reach it, how it ends."""
