"""The user's topology: found, imported, carried to the processes, compared with the state there is."""
