"""Fragments evaluated by Arrow and numpy where files are read: the vectorised evaluator, without Spark.

Only what is proven to give the answers of Spark is evaluated here (`translate.py` has the list); the rest is left to
native Spark SQL, which also decides about every batch that cannot be read or computed here.
"""
