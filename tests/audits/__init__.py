"""Each audit fires on its line, is silent without the fault, and abstains without its artifact."""
