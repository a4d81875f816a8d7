"""Everything that knows an engine's names. Installed as `eagletrace.instrumentations`."""
