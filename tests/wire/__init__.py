"""The wire proxy (penstock.testing.wire): that each action has its effect, and applications behind random plans."""
