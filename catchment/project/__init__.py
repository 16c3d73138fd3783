"""The project: `catchment.toml` read and checked, the routes to the center, and options, each declared once."""
