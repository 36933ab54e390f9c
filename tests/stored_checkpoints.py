"""Which steps are stored in a model_dir."""


def steps_in(folder):
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index") if file.stem != "ckpt-final")
