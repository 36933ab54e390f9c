"""Quick start: from a folder of labeled images to an exported detector, with automatically chosen settings."""
