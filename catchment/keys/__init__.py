"""Certificates and tokens: how they are made, kept in files that nobody else can read, and read again when replaced."""
