"""Reading records: Fetch requests of our own, whose answers the kernel takes apart."""
