"""One module per peer, with a function per workload: `w1(task)` to `w6(task)`. Each uses its engine as its docs do."""
