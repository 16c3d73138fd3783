"""Queries: SQL read into statements (`sql/`), planned (`planning/`), and what a plan, a fragment and a join are."""
