"""The common ground of sites, relays and the center: landed segments, how far each site is, who may send what."""
