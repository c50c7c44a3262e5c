"""What queries of state stores have in common: positions, isolation, and interactive queries v2 (KIP-796)."""
