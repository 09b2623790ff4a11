"""Items on their way between nodes: entries, the boxes that they wait in, and what reads them."""
