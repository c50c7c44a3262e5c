"""What leaves the repository: the site of the documentation, the release and its bill of materials."""
