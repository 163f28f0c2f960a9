"""Starting, stopping, writing and errors of the recorder."""
