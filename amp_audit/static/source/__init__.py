"""Sources: which files, decoded, screened, and lowered to trees without positions."""
