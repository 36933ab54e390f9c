"""Published systems of RetinaNet, SSD300 and Mask R-CNN: their numbers, the shape of their jobs, flags of train.py."""

import shlex

import pytest
from command_lines import outcomes
from launching import SCRIPTS, dry_run, executable, flags_of, records_never_opened, refusal, run
from text_tables import rows

from efficientdet.families.registry import model_names

# mlperf-detectors.md 2.3: nodes, processes, images of each, effective rate, warm-up epochs, decay, epochs of the rate's
# drops
SSD = {
    key: tuple(values)
    for key, *values in rows(r"""
C4140 | 1 | 4 | 128 | 0.0475 | 5.25 | 0.00016 | (44, 55)
2xC4140 | 2 | 8 | 128 | 0.1875 | 5.25 | 0.00016 | (44, 55)
4xC4140 | 4 | 16 | 56 | 0.09 | 5 | 0.00013 | (44, 55)
DSS8440 | 1 | 8 | 128 | 0.1875 | 5 | 0.00016 | (44, 55)
DGX1 | 1 | 8 | 56 | 0.04 | 5.25 | 0.00016 | (44, 55)
DGXA100 | 1 | 8 | 114 | 0.09 | 5 | 0.00013 | (44, 55)
8xDGXA100 | 8 | 64 | 24 | 0.14 | 11 | 0.00017 | (44, 55)
64xDGXA100 | 64 | 512 | 4 | 0.2925 | 26 | 4e-05 | (60, 75)
""")
}
# 1.3: nodes, processes, images per step, rate, warm-up epochs
RETINANET = {
    key: tuple(values)
    for key, *values in rows(r"""
R760xaxL40S | 1 | 4 | 64 | 6e-05 | 0
DSS8440xA30 | 1 | 8 | 128 | 0.0001 | 1
SYS-421GUxH100 | 1 | 4 | 128 | 7.5e-05 | 0
DGXA100 | 1 | 8 | 256 | 8.5e-05 | 0
DGXH100 | 1 | 8 | 256 | 8.5e-05 | 0
DGXH200 | 1 | 8 | 256 | 8.5e-05 | 0
DGXB200 | 1 | 8 | 256 | 8.5e-05 | 0
8xH100_320 | 1 | 8 | 320 | 8.5e-05 | 0
2xDGXA100 | 2 | 16 | 256 | 0.0001 | 1
8xDGXA100 | 8 | 64 | 256 | 0.0001 | 1
8xDGXA100_512 | 8 | 64 | 512 | 0.0001 | 1
32xDGXA100 | 32 | 256 | 8192 | 0.0001 | 1
160xDGXA100 | 160 | 1280 | 1280 | 0.0001 | 1
256xDGXA100 | 256 | 2048 | 2048 | 0.000135 | 1
""")
}
# 3.3: nodes, processes, images per step, iterations of warm-up, those after which the rate drops; 0.02 for 16 images
MASK_RCNN = {
    key: tuple(values)
    for key, *values in rows(r"""
1GPU_2 | 1 | 1 | 2 | 500 | (480000, 640000)
1GPU_4 | 1 | 1 | 4 | 500 | (240000, 360000)
8GPU_32 | 1 | 8 | 32 | 500 | (33000, 44000)
2xA30 | 1 | 2 | 8 | 500 | (144000, 192000)
DGX1 | 1 | 8 | 48 | 625 | (24000, 32000)
DGXA100_64 | 1 | 8 | 64 | 800 | (18000, 24000)
DGXA100 | 1 | 8 | 96 | 625 | (12000, 16000)
8xDGXA100 | 8 | 64 | 128 | 625 | (9000, 12000)
""")
}
TABLES = {"ssd": SSD, "retinanet": RETINANET, "mask_rcnn": MASK_RCNN}
SYSTEMS = [(family, system) for family, table in TABLES.items() for system in table]
ONE_NODE = {family: next(system for system in table if table[system][0] == 1) for family, table in TABLES.items()}
MODELS = {"ssd": "ssd300-resnet34", "retinanet": "retinanet-resnext50", "mask_rcnn": "mask-rcnn-resnet50"}


def hparams_of(flags):
    return dict(pair.split("=") for pair in flags["hparams"].split(","))


def test_every_system_is_in_a_table():
    for family, table in TABLES.items():
        assert {path.stem for path in (SCRIPTS / family / "systems").iterdir()} == set(table)


@pytest.mark.parametrize("system", SSD)
def test_numbers_of_ssd(system):
    nodes, processes, batch, rate, warmup, decay, drops = SSD[system]
    flags = flags_of(dry_run("ssd/run.sub", env={"SYSTEM": system}))
    assert (int(flags["nodes"]), int(flags["ntasks"]), int(flags["batch_size"])) == (nodes, processes, batch)
    assert (float(flags["lr"]), float(flags["warmup_epochs"])) == (rate, warmup)
    wanted = {"weight_decay": decay, "first_lr_drop_epoch": drops[0], "second_lr_drop_epoch": drops[1]}
    assert {key: float(hparams_of(flags)[key]) for key in wanted} == wanted
    assert (flags["target_ap"], flags["eval_epochs"]) == ("0.23", "40,50,55,60,65,70,75,80")
    assert flags.get("bn_group") == ("4" if system == "64xDGXA100" else None)


@pytest.mark.parametrize("system", RETINANET)
def test_numbers_of_retinanet(system):
    nodes, processes, images, rate, warmup = RETINANET[system]
    flags = flags_of(dry_run("retinanet/run.sub", env={"SYSTEM": system}))
    assert (int(flags["nodes"]), int(flags["ntasks"])) == (nodes, processes)
    assert (processes * int(flags["batch_size"]), float(flags["lr"]), float(flags["warmup_epochs"])) == (
        images,
        rate,
        warmup,
    )
    assert (flags["target_ap"], flags["eval_period"], "hparams" in flags) == ("0.34", "1", False)


@pytest.mark.parametrize("system", MASK_RCNN)
def test_numbers_of_mask_rcnn(system):
    nodes, processes, images, warmup, drops = MASK_RCNN[system]
    flags = flags_of(dry_run("mask_rcnn/run.sub", env={"SYSTEM": system}))
    assert (int(flags["nodes"]), int(flags["ntasks"])) == (nodes, processes)
    assert processes * int(flags["batch_size"]) == images
    assert float(flags["lr"]) == pytest.approx(0.02 * images / 16)
    steps = 117_266 / images  # an epoch
    assert float(flags["warmup_epochs"]) * steps == pytest.approx(warmup, rel=2e-3)
    hparams = hparams_of(flags)
    found = [float(hparams[f"{which}_lr_drop_epoch"]) * steps for which in ("first", "second")]
    assert found == pytest.approx(drops, rel=1e-3)
    assert (flags["model_name"], flags["target_ap"], flags["eval_period"]) == ("mask-rcnn-resnet50", "0.377", "1")


def test_ssds_rate_follows_the_batch():
    """2.5e-3 times a whole number, at least once, as the published program rounds it."""
    for words, rate in (
        (["BS=56"], 0.02),
        (["BS=1"], 0.0025),
        (["LR=0.03"], 0.03),
        (["LR_PER_32=2.5e-3", "BS=32"], 0.01),
    ):
        assert float(flags_of(dry_run("ssd/run.sub", "SYSTEM=C4140", *words))["lr"]) == rate


@pytest.mark.parametrize(
    ("words", "warns"),
    rows(r"""
[] | False
['LR=1e-4'] | True
['LR=1e-4', 'BS=14'] | True
['LR=1e-4', 'BS=32'] | False
['LR=6e-5', 'BS=14'] | False
"""),
)
def test_the_pair_that_does_not_converge_is_told(words, warns):
    done = run("retinanet/run.sh", "SYSTEM=R760xaxL40S", *words, "--dry_run")
    assert done.returncode == 0
    assert ("56 at 1e-4 did not reach 0.34" in done.stderr) == warns
    assert done.stderr.count("\n") == warns


@pytest.mark.parametrize(
    ("env", "words", "message"),
    rows(r"""
{} | [] | SYSTEM is missing; expected one of 2xC4140 4xC4140
{'SYSTEM': 'c4140'} | [] | SYSTEM=c4140; expected one of 2xC4140
{'SYSTEM': '../../D0/x'} | [] | SYSTEM=../../D0/x; expected a name of letters
{'SYSTEM': '2xC4140', 'SLURM_JOB_NUM_NODES': '1'} | [] | has 2 nodes and the job 1; expected sbatch -N 2
{'SYSTEM': '2xC4140', 'SLURM_NTASKS': '4'} | [] | has 8 processes and the job 4; expected sbatch -n 8
{'SYSTEM': 'C4140'} | ['NGPU=8'] | 1 nodes of 4 GPUs, but NGPU=8
{'SYSTEM': 'C4140'} | ['NETWORK=ib0,X=1'] | NETWORK=ib0,X=1; expected a name of letters
{'SYSTEM': 'C4140'} | ['EVAL_EPOCHS=40,x'] | EVAL_EPOCHS=40,x; expected whole numbers
{'SYSTEM': 'C4140'} | ['DROPS=40'] | DROPS=40; expected two numbers such as 40,50
"""),
)
def test_refused(env, words, message):
    assert message in refusal("ssd/run.sub", *words, "--dry_run", env=env)


def test_what_dells_page_says_is_taken(tmp_path):
    """SYSTEM=2xC4140 sbatch -N 2 -n 8, with Singularity's sandbox."""
    words = dry_run(
        "ssd/run.sub",
        "CONTAINER=singularity",
        "IMAGE_TAG=/images/sandbox",
        "NETWORK=ib0",
        f"datadir={tmp_path}",
        env={"SYSTEM": "2xC4140", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"},
    )
    assert words[0] == "srun"
    assert {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=10"} < set(words)
    assert "--export=ALL,NCCL_SOCKET_IFNAME=ib0,HOROVOD_GLOO_IFACE=ib0" in words
    mounts = f"/checkpoints:/workspace/checkpoints,{tmp_path}:/workspace/coco"
    assert f"singularity exec --nv --bind {mounts} /images/sandbox" in " ".join(words)
    assert flags_of(words)["model_dir"] == "/workspace/checkpoints/2xC4140"


def test_the_names_of_dells_document_are_taken(tmp_path):
    """DATADIR= LOGDIR= PRETRAINED_DIR= SYSTEM= sbatch ..., as SSD300's document has it."""
    theirs = {
        "DATADIR": "/data",
        "LOGDIR": "/logs",
        "PRETRAINED_DIR": f"{tmp_path}",
        "SYSTEM": "C4140",
        "CONT": "mine:1",
    }
    words = dry_run("ssd/run.sub", env=theirs)
    assert {
        "--container-image=mine:1",
        "EFFICIENTDET_WEIGHTS=/workspace/weights",
        f"--container-mounts=/logs:/workspace/checkpoints,/data:/workspace/coco,{tmp_path}:/workspace/weights",
    } < set(words)
    line = refusal("ssd/run.sh", "--dry_run", env=theirs)  # the image would not be used
    assert "IMAGE_TAG=mine:1 (given as CONT) is not read here: CONTAINER=docker runs" in line
    words = dry_run("ssd/run.sh", env={name: theirs[name] for name in theirs if name != "CONT"})
    assert f"EFFICIENTDET_WEIGHTS={tmp_path}" in words
    assert (flags_of(words)["val_file_pattern"], flags_of(words)["model_dir"]) == ("/data/val-*", "/logs/C4140")


@pytest.mark.parametrize("name", ["DATADIR", "LOGDIR", "PRETRAINED_DIR", "BACKBONE_CKPT"])
def test_a_folder_of_the_host_that_is_missing(tmp_path, name):
    executable(tmp_path / "srun", "echo ran")
    env = {
        "DATADIR": f"{tmp_path}",
        "LOGDIR": f"{tmp_path}",
        "SYSTEM": "C4140",
        "SLURM_JOB_ID": "1",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    assert run("ssd/run.sub", env=env).stdout == "ran\n"
    assert "=/nowhere: there is no such folder" in refusal("ssd/run.sub", env={**env, name: "/nowhere"})


@pytest.mark.parametrize("family", MODELS)
def test_mlperfs_log_is_written_where_its_package_is(tmp_path, family):
    for program, there in (("/bin/true", True), ("/bin/false", False)):
        for words, wanted in (
            ([], f"{tmp_path}/model/mlperf.log" if there else None),
            (["MLPERF_LOG="], ""),
            (["MLPERF_LOG=x.log"], "x.log"),
        ):
            done = run(
                f"{family}/run.sh",
                f"SYSTEM={ONE_NODE[family]}",
                f"PYTHON={program}",
                f"MODEL_DIR={tmp_path}/model",
                *words,
                "--dry_run",
            )
            assert done.returncode == 0
            assert flags_of(shlex.split(done.stdout)).get("mlperf_log", "" if wanted == "" else None) == wanted
            assert ("no MLPerf log: mlperf-logging is not installed; " in done.stderr) == (wanted is None)
    inside = flags_of(dry_run(f"{family}/run.sub", f"SYSTEM={ONE_NODE[family]}"))
    assert inside["mlperf_log"] == f"/workspace/checkpoints/{ONE_NODE[family]}/mlperf.log"  # the image has the package


def test_a_system_of_several_nodes_is_for_sbatch():
    line = refusal("ssd/run.sh", "SYSTEM=2xC4140", "--dry_run")
    assert "SYSTEM=2xC4140 has 2 nodes; expected scripts/ssd/run.sub" in line
    for family in ("retinanet", "mask_rcnn"):
        words = dry_run(f"{family}/run.sh", "SYSTEM=DGXA100")
        assert words[words.index("-np") + 1] == "8"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What train.py says of each system's flags, all its checks before TensorFlow done."""
    folder, cases = records_never_opened(tmp_path_factory.mktemp("systems")), {}
    for family, system in SYSTEMS:
        if MODELS[family] in model_names():
            words = dry_run(
                f"{family}/run.sub",
                f"SYSTEM={system}",
                "CONTAINER=none",
                f"DATA={folder}",
                "TRAIN=train-*",
                "VAL=val-*",
                "VAL_JSON=",
                f"MODEL_DIR={folder}/{system}",
            )
            cases[family, system] = [
                "train",
                *words[next(i for i, word in enumerate(words) if word.endswith("train.py")) + 1 :],
            ]
    return dict(zip(cases, outcomes(cases.values(), cwd=folder), strict=True))


@pytest.mark.parametrize(("family", "system"), SYSTEMS)
def test_train_py_takes_the_flags_of_each_system(verdicts, family, system):
    if (family, system) not in verdicts:
        pytest.skip(f"{MODELS[family]} is not here")
    outcome = verdicts[family, system]
    assert outcome["wanted"] is not None, outcome["stderr"]


WRITES_ITS_WORDS = 'printf "%s\\n" "$@" >"$0.words"\necho trained\nexit 7'


def test_run_with_docker_of_the_documents(tmp_path):
    """CONT= DATADIR= LOGDIR= PRETRAINED_DIR= SYSTEM= ./run_with_docker.sh, of NVIDIA's and Dell's documents."""
    executable(tmp_path / "docker", WRITES_ITS_WORDS)
    executable(tmp_path / "nvidia-smi", "printf 'GPU\\n%.0s' {1..8}")
    (tmp_path / "data").mkdir()
    (tmp_path / "weights").mkdir()
    theirs = {
        "CONT": "registry/effdet:1",
        "DATADIR": f"{tmp_path}/data",
        "LOGDIR": f"{tmp_path}/logs",
        "PRETRAINED_DIR": f"{tmp_path}/weights",
        "SYSTEM": "DSS8440",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    done = run("ssd/run.sh", "CONTAINER=docker", env=theirs)
    assert (done.returncode, done.stdout) == (7, "trained\n"), done.stderr
    words = (tmp_path / "docker.words").read_text().splitlines()
    at = words.index("registry/effdet:1")
    assert words[:2] == ["run", "--rm"]
    assert {"--net=host", "--uts=host", "--ipc=host", "--init", "stack=67108864", "memlock=-1"} < set(words[:at])
    assert words[words.index("--gpus") + 1] == "all"
    assert [words[index + 1] for index, word in enumerate(words[:at]) if word == "-v"] == [
        f"{tmp_path}/logs:/workspace/checkpoints",
        f"{tmp_path}/data:/workspace/coco",
        f"{tmp_path}/weights:/workspace/weights",
    ]
    assert words[at + 1] == "/workspace/effdet-tf2/.venv/bin/python"
    assert words[words.index("-np") + 1] == "8"
    flags = flags_of(words[at:])
    assert (flags["training_file_pattern"], flags["model_dir"]) == (
        "/workspace/coco/train-*",
        "/workspace/checkpoints/DSS8440",
    )
    [log] = (tmp_path / "logs" / "DSS8440").glob("train-*.log")  # on the host
    assert log.read_text() == "trained\n"
    line = refusal("ssd/run.sh", "CONTAINER=docker", env={**theirs, "DATADIR": "/nowhere"})
    assert "datadir=/nowhere: there is no such folder" in line


def test_paths_of_the_host_become_paths_of_the_container():
    words = dry_run("D0/evaluate-AMP-8xA100-80G.sh", "CONTAINER=docker", "CKPT=/old/ckpt-9", "VAL=/d/val-*", "DATA=/d")
    assert {"/old:/workspace/checkpoint", "/d:/workspace/coco"} < set(words)
    flags = flags_of(words)
    assert flags["ckpt_path"] == "/workspace/checkpoint/ckpt-9"
    assert flags["val_file_pattern"] == "/workspace/coco/val-*"
    words = dry_run("D0/convergence-AMP-8xA100-80G.sh", "CONTAINER=docker", "MODEL_DIR=/r/d0", "ENGINE=jax")
    assert "/r:/workspace/checkpoints" in words
    assert flags_of(words)["model_dir"] == "/workspace/checkpoints/d0"
    words = dry_run("D0/evaluate-AMP-32xV100-32G.sub", "CKPT=/results/d0/ckpt-9", "checkpointdir=/results")
    assert flags_of(words)["ckpt_path"] == "/workspace/checkpoints/d0/ckpt-9"


@pytest.mark.parametrize(
    ("words", "message"),
    rows(r"""
['CONTAINER=pyxis'] | CONTAINER=pyxis; expected docker or none (the .sub recipes, for sbatch, have others)
['CONTAINER=docker', 'MODEL_DIR=/a/x', 'checkpointdir=/b'] | MODEL_DIR=/a/x is not below checkpointdir=/b
['CONTAINER=docker', 'MODEL_DIR=/workspace/x'] | MODEL_DIR=/workspace/x is not mounted in the container
['CONTAINER=docker', 'DATA=/d', 'TRAIN=/e/train-*'] | TRAIN=/e/train-* is in none of the mounted folders
['CONTAINER=docker', 'DATA=/d,/etc'] | /d,/etc: a comma or colon cannot stand in a container's mounts
"""),
)
def test_refused_with_docker(words, message):
    assert message in refusal("D0/convergence-AMP-8xA100-80G.sh", *words, "--dry_run")
