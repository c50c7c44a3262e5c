"""One broker's socket: opening, authentication, requests in flight."""
