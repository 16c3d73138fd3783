"""Bytes on the wire: segments against Avro and against shipping the records."""
