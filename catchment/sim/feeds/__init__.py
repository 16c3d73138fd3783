"""Made-up worlds of devices, and measured runs over them."""
