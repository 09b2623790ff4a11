"""What a body gets and gives: values, places, services, errors."""
