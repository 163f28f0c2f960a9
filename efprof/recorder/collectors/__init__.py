"""What else is recorded, one file per artifact; other collectors lie with their subject in the folders beside."""
