"""Records that wait for their time: suppress, joins with a grace period."""
