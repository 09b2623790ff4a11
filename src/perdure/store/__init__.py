"""Where runs and values are kept."""
