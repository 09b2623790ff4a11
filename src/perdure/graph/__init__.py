"""What a workflow is: graphs, the node types they are made of, how they are written, and what can be wrong with them.

Pure: no I/O but the reading of a file that `forms.load_graph` is pointed at, no clock, no randomness.
"""
