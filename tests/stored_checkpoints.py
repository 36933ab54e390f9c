"""The steps whose checkpoints a model_dir holds."""


def steps_in(folder):
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index") if file.stem != "ckpt-final")
