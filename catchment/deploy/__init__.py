"""What runs where, without Spark: deployments, contracts, submitting and moving queries, connections, status."""
