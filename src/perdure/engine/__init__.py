"""What makes runs move."""
