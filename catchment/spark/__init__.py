"""Everything that needs PySpark: the session, sources, evaluation, pipelines and feeds."""
