"""The windows of one query at the center: open slices, closing, publishing, early answers."""
