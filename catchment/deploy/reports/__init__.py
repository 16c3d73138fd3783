"""What runs is reported here: files and status of roles, traffic and traces of windows."""
