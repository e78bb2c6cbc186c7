"""Names: what they mean, across files, classes, re-exports and aliases."""
