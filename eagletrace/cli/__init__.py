"""The `eagletrace` command: one short file per command."""
