"""The files of `files` streams: found in their folder, told apart by content, compared with what was read."""
