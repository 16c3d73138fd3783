"""What must hold of a simulated run, and the oracle that it is compared with."""
