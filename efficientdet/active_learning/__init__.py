"""Which unlabeled images to label next."""
