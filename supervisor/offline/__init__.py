"""An application that is not running: its state, its reset."""
