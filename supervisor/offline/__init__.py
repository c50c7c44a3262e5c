"""An application that does not run: its state, its reset."""
