"""Records that others send to a site: written to files of its own before anybody is told that they have arrived."""
