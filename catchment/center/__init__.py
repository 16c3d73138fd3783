"""The center: merges the partials of all sites, closes windows, publishes them and makes them exact later."""
