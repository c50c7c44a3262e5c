"""``python -m penstock.cli``: the penstock command."""

from . import main

if __name__ == "__main__":
    main()
