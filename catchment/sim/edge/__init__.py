"""What a site sends and how late it is: policies over traces of keys."""
