"""From a folder of labeled images to a detector that runs elsewhere: the programs one after another, with settings chosen."""
