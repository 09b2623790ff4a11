"""Who drives which run: engines among each other, their leases, and how runs pass from one to another."""
