"""perdure beside its peers: the same work, the same database settings, one run."""
