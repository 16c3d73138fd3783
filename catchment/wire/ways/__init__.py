"""Ways around a link: which one a sender uses, and how others forward what goes over it."""
