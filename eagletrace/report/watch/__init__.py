"""`eagletrace watch`: a live terminal view of a server that is being traced, from its run folder alone."""
