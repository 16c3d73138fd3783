"""The language of feeds: program text to templates, and templates with reference data to views."""
