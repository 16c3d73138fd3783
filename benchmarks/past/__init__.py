"""What the past costs: second rounds of estimates, and views that begin in the past."""
