"""Routes by what links are measured to carry: found, chosen, and moved to while everything runs."""
