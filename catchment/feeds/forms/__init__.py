"""What devices are told, in forms that any language can read: expressions, programs and views."""
