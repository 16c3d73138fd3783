"""What builds and checks the repository itself: none of it is installed."""
