"""What is stored of a run, read and judged without driving it."""
