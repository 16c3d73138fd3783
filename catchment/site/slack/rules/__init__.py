"""The rules of slack controllers, one file per kind: each decides when a window may close."""
