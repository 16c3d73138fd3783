"""The command line: `main` puts the groups of `commands` together; output, tables and progress are shared by all."""
