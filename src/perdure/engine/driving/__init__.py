"""What moves one run: its driver, the actors of its nodes, and what is said to it meanwhile."""
