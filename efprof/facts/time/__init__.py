"""Where within a step time goes, by the user's line."""
