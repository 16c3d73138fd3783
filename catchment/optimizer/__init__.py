"""Optimization: plans in normal form (`normal_form/`), shared between queries (`sharing/`), placed (`placement/`)."""
