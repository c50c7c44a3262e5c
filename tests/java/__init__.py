"""One application on Java and on Penstock, in turn and at the same time: ``python -m tests.java`` runs all of it."""
