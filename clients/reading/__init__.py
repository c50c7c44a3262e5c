"""Reading records: our own Fetch requests. The kernel parses the responses."""
