"""The flights of 2013 from New York through Penstock: four answers from five topics. See README.md."""
