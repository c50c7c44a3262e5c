"""What all of the topology uses: checks of arguments, durations, names, Java's orders."""
