"""What runs where: deployments, contracts, submitting, moving and their status, without Spark."""
