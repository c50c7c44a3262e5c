"""State stores that write every update through to rows and changelog."""
