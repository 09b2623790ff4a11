"""How what was decided becomes durable, and who hears of it."""
