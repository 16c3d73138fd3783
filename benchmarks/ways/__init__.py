"""Ways around a link: what a change of the network costs a running deployment."""
