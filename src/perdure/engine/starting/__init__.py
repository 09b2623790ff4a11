"""How a run begins: what of, with which inputs, under which name."""
