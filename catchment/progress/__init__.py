"""What sites, relays and the center agree on: landed segments, how far each site is, who may send what."""
