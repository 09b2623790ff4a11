"""Built-in node types, a module each."""
