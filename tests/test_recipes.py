"""The scripts under scripts/: their numbers, settings and errors; three of them run on two CPU ranks."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import forked_programs
import pytest
from drawn_records import draw_records
from launching import SCRIPTS, dry_run, executable, flags_of, refusal, run
from miniature_programs import path_to_miniature
from text_tables import rows

REPOSITORY, D0 = SCRIPTS.parent, SCRIPTS / "D0"
SCRIPT, JOB = (D0 / f"convergence-AMP-{name}" for name in ("8xA100-80G.sh", "32xV100-32G.sub"))
BENCHMARKS = SCRIPTS / "benchmark"
RECIPES = sorted([*D0.iterdir(), *(SCRIPTS / "docker").iterdir(), *BENCHMARKS.iterdir()])
# The reference's own numbers; average: moving_average_decay; -: not a flag of that program
FIRST, SECOND, *LINES = """
processes batch_size eval_batch_size num_epochs lr warmup_epochs average momentum amp
    training_mode num_devices precision
convergence-AMP-8xA100-80G.sh 8 200 10 400 2.2 25 0.999 0.93 True traineval - -
convergence-TF32-8xA100-80G.sh 8 104 104 400 1.1 25 0.999 0.93 False train - -
convergence-AMP-8xV100-32G.sh 8 64 64 300 0.7 5 0.9999 0.9 True traineval - -
convergence-FP32-8xV100-32G.sh 8 40 40 300 0.4 5 0.9999 0.9 False traineval - -
convergence-AMP-32xV100-32G.sub 32 64 64 350 1.5 90 0.999 0.95 True traineval - -
convergence-FP32-32xV100-32G.sub 32 40 40 350 1.0 90 0.999 0.95 False traineval - -
convergence-JAX-BF16-8xH100-80G.sh 1 200 200 400 2.2 25 0.999 0.93 - traineval 8 mixed_bfloat16
convergence-JAX-BF16-32xH100-80G.sub 4 64 64 350 1.5 90 0.999 0.95 - traineval 8 mixed_bfloat16
training-benchmark-AMP-1xA100-80G.sh 1 200 - - 2.2 25 0.999 0.93 True - - -
training-benchmark-TF32-1xA100-80G.sh 1 104 - - 1.1 25 0.999 0.93 False - - -
training-benchmark-AMP-A100-80G.sh 8 200 - - 2.2 25 0.999 0.93 True - - -
training-benchmark-TF32-A100-80G.sh 8 104 - - 1.1 25 0.999 0.93 False - - -
training-benchmark-AMP-V100-32G.sh 8 64 - - 0.7 5 0.9999 0.9 True - - -
training-benchmark-FP32-V100-32G.sh 8 40 - - 0.4 5 0.9999 0.9 False - - -
evaluate-AMP-8xA100-80G.sh 8 200 - - - - 0.999 - True - - -
evaluate-TF32-8xA100-80G.sh 8 104 - - - - 0.999 - False - - -
evaluate-AMP-8xV100-32G.sh 8 64 - - - - 0.9999 - True - - -
evaluate-FP32-8xV100-32G.sh 8 40 - - - - 0.9999 - False - - -
evaluate-AMP-32xV100-32G.sub 32 64 - - - - 0.999 - True - - -
evaluate-FP32-32xV100-32G.sub 32 40 - - - - 0.999 - False - - -
""".strip().splitlines()
HEAD = f"{FIRST} {SECOND}".split()
NUMBERS = {line.split()[0]: dict(zip(HEAD, line.split()[1:], strict=True)) for line in LINES}
SHARED = {
    "convergence": "stop_epoch=300 eval_from=200 num_examples_per_epoch=120000 use_xla=True",
    "training": "benchmark=True benchmark_steps=500",
    "evaluate": "ckpt_path=/checkpoints/emackpt-300",
}


def processes(words, script):
    if script.endswith(".sub"):
        directives = dict(re.findall(r"#SBATCH --(nodes|ntasks-per-node)=(\d+)", (D0 / script).read_text()))
        assert words[0] == "srun"
        return int(directives["nodes"]) * int(directives["ntasks-per-node"])
    return int(words[words.index("-np") + 1]) if "-np" in words else 1


@pytest.mark.parametrize("script", RECIPES, ids=lambda path: path.name)
def test_every_script_dry_runs_anywhere_with_flags_that_exist(script):
    words = dry_run(script)
    programs = [word for word in words if word.endswith(("train.py", "eval.py", "infer.py", "inspector.py"))]
    if script.parent.name == "docker":
        assert words[0] == "docker"
        return
    [program] = {Path(word).name for word in programs}
    page = (REPOSITORY / "docs" / "reference" / "flags.md").read_text()
    defined = page.partition(f"\n## {program}\n")[2].partition("\n## ")[0].replace("--[no]", "--")
    given = [word for word in words[words.index(programs[0]) :] if word.startswith("--")]
    for flag in given:
        assert f"`{flag.split('=')[0]}`" in defined, f"{program} has no {flag}"


def test_nothing_is_missing():
    names = {path.name for path in D0.iterdir()}
    assert {*NUMBERS, "inference-benchmark.sh", "inference.sh"} < names
    for kind in ("convergence", "training-benchmark", "evaluate"):
        assert {f"{kind}-BF16-{count}x{card}.sh" for count in (1, 8) for card in ("H100-80G", "H200-141G")} < names


@pytest.mark.parametrize("script", NUMBERS)
def test_numbers_are_the_references(script):
    words, wanted = dry_run(D0 / script), {name: value for name, value in NUMBERS[script].items() if value != "-"}
    flags = flags_of(words)
    assert processes(words, script) == int(wanted.pop("processes"))
    assert ("KERAS_BACKEND=jax" in words) == ("JAX" in script)
    hparams = dict(pair.split("=") for pair in flags["hparams"].split(","))
    flags |= {"average": hparams["moving_average_decay"], "momentum": hparams.get("momentum")}
    wanted |= dict(pair.split("=") for pair in SHARED[script.split("-")[0]].split())
    assert {name: flags.get(name) for name in wanted} == wanted
    assert (flags.get("enable_map_parallelization") == "False") == (
        script.startswith("training-benchmark") and "1x" in script
    )


def test_every_recipe_runs_under_jax_with_one_process_per_host():
    """The program's own flags stay the same; the devices of its process are all that is added."""
    for script in ("convergence-AMP-8xA100-80G.sh", "training-benchmark-AMP-A100-80G.sh", "evaluate-AMP-8xA100-80G.sh"):
        over_horovod, under_jax = dry_run(D0 / script), dry_run(D0 / script, "ENGINE=jax", "WEIGHTS_DIR=/my weights")
        assert under_jax[:3] == ["env", "EFFICIENTDET_WEIGHTS=/my weights", "KERAS_BACKEND=jax"]
        program = over_horovod[over_horovod.index("--gloo") + 3 :]
        added = [] if script.startswith("evaluate") else ["--num_devices=8"]
        assert sorted(under_jax[3:]) == sorted([*program, *added])
    for nodes, devices in (("4", "8"), ("8", "4")):
        words = dry_run(JOB, "ENGINE=jax", env={"SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": "32"})
        assert {"--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", f"--num_devices={devices}"} < set(words)
    words = dry_run(SCRIPTS / "ssd" / "run.sub", "SYSTEM=2xC4140", "NETWORK=ib0", "ENGINE=jax")
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--num_devices=4"} < set(words)
    assert not [word for word in words if word.startswith("--cpus-per-task")]


def test_settings_before_the_command_and_after_it():
    after = dry_run(SCRIPT, "BS=16", "DATA=/data/my coco", "--seed=3")
    assert after == dry_run(SCRIPT, "--seed=3", env={"BS": "16", "DATA": "/data/my coco"})
    assert flags_of(after)["training_file_pattern"] == "/data/my coco/train-*"
    assert flags_of(after)["seed"] == "3"
    assert flags_of(dry_run(SCRIPT, "BS=16", env={"BS": "8"}))["batch_size"] == "16"  # the word wins


@pytest.mark.parametrize(
    ("env", "words"),
    rows(r"""
{'bs': '128'} | []
{'Bs': '128'} | []
{} | ['bs=128']
{'BS': '8'} | ['bs=128']
{} | ['--batch_size=128']
{'BATCHSIZE': '128'} | []
{'bs': '128', 'BS': '128'} | []
"""),
)
def test_a_batch_size_in_any_spelling(env, words):
    command = dry_run(D0 / "inference-benchmark.sh", *words, env=env)
    assert "--output_json=/tmp/inference-benchmark/batch-128.json" in command
    assert {word for word in command if word.startswith("--batch_size")} == {"--batch_size=128"}


@pytest.mark.parametrize(
    ("script", "words", "wanted"),
    rows(r"""
mask_rcnn/run.sh | ['SYSTEM=1GPU_4', 'AMP=FALSE'] | --amp=FALSE
retinanet/run.sub | ['SYSTEM=DGXA100', 'amp=0'] | --amp=0
ssd/run.sh | ['SYSTEM=C4140', '--noamp'] | --noamp
D0/convergence-BF16-8xH100-80G.sh | ['--amp=False'] | --amp=False
D0/evaluate-BF16-1xH200-141G.sh | ['AMP=True'] | --amp=True
D0/training-benchmark-BF16-1xH100-80G.sh | ['AMP=False', 'PRECISION=float32'] | --precision=float32
D0/convergence-AMP-8xV100-32G.sh | ['PRECISION=mixed_bfloat16'] | --precision=mixed_bfloat16
D0/convergence-AMP-8xV100-32G.sh | ['--precision=float32'] | --precision=float32
D0/inference.sh | ['AMP=False', 'DEVICE=cpu'] | --amp=False
D0/convergence-AMP-8xV100-32G.sh | ['DEVICE=cpu', 'AMP=True'] | --amp=True
"""),
)
def test_the_users_precision_replaces_the_recipes(script, words, wanted):
    command = dry_run(SCRIPTS / script, *words)
    of_precision = {word for word in command if re.match(r"--(no)?amp|--precision", word)}
    assert of_precision - {"--amp=False"} <= {wanted}
    assert wanted in of_precision


NOT_READ = {  # script -> settings that its program does not read
    "D0/convergence-AMP-8xA100-80G.sh": "OUTPUT CONT CKPT STEPS RUNS GPUS SYSTEM NETWORK CORES IMAGE NODES",
    "D0/convergence-AMP-32xV100-32G.sub": "OUTPUT CKPT LAUNCHER PYTHON GPUS SYSTEM NETWORK",
    "D0/training-benchmark-AMP-A100-80G.sh": "EPOCHS EVAL_BS TARGET_AP training_mode CKPT VAL EXAMPLES OUTPUT",
    "D0/evaluate-AMP-8xA100-80G.sh": "MOMENTUM LR EPOCHS SEED BACKBONE TRAIN OUTPUT EVAL_BS",
    "D0/inference.sh": "NGPU DATA SEED LR CONTAINER EPOCHS",
    "D0/inference-benchmark.sh": "NGPU DATA SEED OUTPUT IMAGE LAUNCHER CONTAINER",
    "benchmark/training.sh": "EPOCHS OUTPUT VAL_JSON EVAL_SAMPLES",
    "ssd/run.sh": "NETWORK CORES STEPS OUTPUT CONT",
    "ssd/run.sub": "LAUNCHER PYTHON OUTPUT CKPT",
}
A_VALUE = {"SYSTEM": "C4140", "LAUNCHER": "mpirun", "CONTAINER": "docker", "training_mode": "train", "CONT": "x:1"}


@pytest.mark.parametrize("script", NOT_READ)
def test_a_setting_that_is_not_read_is_refused(script):
    more = [] if script.startswith(("D0", "benchmark")) else ["SYSTEM=C4140"]
    path = SCRIPTS / script
    for key in NOT_READ[script].split():
        value = A_VALUE.get(key, "1")
        for words, env in (([f"{key}={value}"], {}), ([], {key: value})):
            if key == "PYTHON" and env:  # other programs have such a variable
                assert "/workspace/effdet-tf2/.venv/bin/python" in dry_run(path, *more, env=env)
                continue
            line = refusal(path, *more, *words, "--dry_run", env=env)
            assert f"={value}" in line
            assert " is not read here" in line
        assert run(path, *more, "--dry_run", env={key: ""}).returncode == 0, key


def test_the_period_of_evaluations_follows_the_one_of_checkpoints():
    for script in (SCRIPT, SCRIPTS / "retinanet" / "run.sh"):
        for words in (["CHECKPOINT_PERIOD=5"], ["--checkpoint_period=5"]):
            more = ["SYSTEM=DGXA100"] if script.name == "run.sh" else []
            assert flags_of(dry_run(script, *more, *words))["eval_period"] == "5"
        assert flags_of(dry_run(script, *more, "CHECKPOINT_PERIOD=5", "EVAL_PERIOD=2"))["eval_period"] == "2"
    flags = flags_of(dry_run(SCRIPT, "EVAL_EPOCHS=100,300"))
    assert not {"eval_period", "eval_from"} & flags.keys()  # train.py refuses them beside it
    flags = flags_of(dry_run(SCRIPTS / "ssd" / "run.sh", "SYSTEM=C4140", "EVAL_PERIOD=5"))
    assert (flags["eval_period"], "eval_epochs" in flags) == ("5", False)


def test_detection_in_images_needs_no_gpu(tmp_path):
    here = ["PYTHON=/bin/echo", f"MODEL_DIR={tmp_path}", f"OUTPUT={tmp_path}/out", f"IMAGE={tmp_path}/a.jpg"]
    done = run(D0 / "inference.sh", *here)
    assert done.returncode == 0, done.stderr
    assert f"--output_dir={tmp_path}/out" in done.stdout
    assert "but this machine has 0 GPUs" in refusal(D0 / "inference.sh", *here, "DEVICE=gpu")


def test_variables_of_container_and_package_managers_are_no_settings():
    env = {"container": "podman", "system": "x86_64-linux"}
    assert dry_run(D0 / "inference-benchmark.sh", env=env) == dry_run(D0 / "inference-benchmark.sh")


def backbone(*words, **options):
    return flags_of(dry_run(*words, **options)).get("backbone_init")


def test_a_mounted_backbone_is_used(tmp_path):
    """BACKBONE_CKPT of the reference's docker/interactive.sh, and what lies where that script mounts it."""
    mounted, inside = tmp_path / "mounted", "/workspace/checkpoints/efficientnet-b0-joc"
    env = {"BACKBONE_CKPT": str(mounted)}
    mounted.mkdir()
    (mounted / "saved_model.pb").touch()
    assert backbone(SCRIPT) == "imagenet"
    assert backbone(SCRIPT, env=env) == str(mounted)
    assert backbone(SCRIPT, "BACKBONE=imagenet", env=env) == "imagenet"
    assert backbone(JOB, env=env) == inside
    assert f"{mounted}:{inside}" in " ".join(dry_run(JOB, env=env))
    mounted.rename(tmp_path / "efficientnet-b0-joc")
    assert backbone(JOB, f"checkpointdir={tmp_path}") == inside
    assert backbone(JOB, f"checkpointdir={tmp_path}", "MODEL=efficientdet-d4") == "imagenet"


def test_folders_of_the_host_in_a_job_and_outside():
    wanted = dry_run(JOB, env={"datadir": "/mine", "checkpointdir": "/results"})
    assert "--container-mounts=/results:/workspace/checkpoints,/mine:/workspace/coco" in wanted
    for env in ({"DATADIR": "/mine", "LOGDIR": "/results"}, {"DATA": "/mine", "checkpointdir": "/results"}):
        assert dry_run(JOB, env=env) == wanted
    flags = flags_of(dry_run(SCRIPT, env={"DATADIR": "/mine", "LOGDIR": "/results"}))
    assert (flags["val_file_pattern"], flags["model_dir"]) == ("/mine/val-*", "/results/convergence-AMP-8xA100-80G")
    flags = flags_of(dry_run(JOB, "CONTAINER=none", env={"DATADIR": "/mine", "LOGDIR": "/results"}))
    assert (flags["val_file_pattern"], flags["model_dir"]) == ("/mine/val-*", "/results/convergence-AMP-32xV100-32G")


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("D0/convergence-AMP-32xV100-32G.sub", "srun"),
        ("docker/build.sh", "docker"),
        ("docker/interactive.sh", "docker"),
    ],
)
def test_a_missing_program_is_one_line(tmp_path, script, program):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "sed"):
        (tools / name).symlink_to(shutil.which(name))
    line = refusal(script, env={"PATH": str(tools), "SLURM_JOB_ID": "1"})
    assert f"error: {program} is not installed (no {program} in PATH); " in line


@pytest.mark.parametrize(
    ("container", "wanted"),
    [
        ("pyxis", "--container-image="),
        ("apptainer", "apptainer exec --nv"),
        ("singularity", "singularity exec --nv"),
        ("none", "train.py"),
    ],
)
def test_containers(container, wanted):
    assert wanted in " ".join(dry_run(JOB, f"CONTAINER={container}"))


@pytest.mark.parametrize(
    ("script", "words", "message"),
    rows(r"""
8xA100-80G.sh | ['DATADIRS=3'] | unknown setting DATADIRS, did you mean datadir?
8xA100-80G.sh | ['NEXP=5'] | NEXP=5: a job is one run
8xA100-80G.sh | ['EXTRA_PARAMS=--x'] | EXTRA_PARAMS=--x: holds flags of another program
8xA100-80G.sh | ['--batch_size=many'] | BS=many; expected a whole number from 1 on
8xA100-80G.sh | ['=3'] | unknown setting ; expected one of
8xA100-80G.sh | ['NONSENSE=3'] | unknown setting NONSENSE; expected one of
8xA100-80G.sh | ['now'] | unexpected word 'now'
8xA100-80G.sh | ['DATA=/nowhere'] | no records match TRAIN=/nowhere/train-*
8xA100-80G.sh | ['LAUNCHER=ssh'] | LAUNCHER=ssh; expected one of horovodrun mpirun
8xA100-80G.sh | ['DEVICE=tpu'] | DEVICE=tpu; expected one of cpu gpu
8xA100-80G.sh | ['NGPU=zwei'] | NGPU=zwei; expected a whole number from 1 on
8xA100-80G.sh | ['NGPU=0'] | NGPU=0; expected a whole number from 1 on
8xA100-80G.sh | ['BS=-1'] | BS=-1; expected a whole number from 1 on
8xA100-80G.sh | ['EPOCHS=08'] | EPOCHS=08; expected a whole number from 1 on
8xA100-80G.sh | ['EXAMPLES=12345678901'] | EXAMPLES=12345678901; expected a whole number
8xA100-80G.sh | ['SEED=-1'] | SEED=-1; expected a whole number from 0 on
8xA100-80G.sh | ['LR=nan'] | LR=nan; expected a number such as 0.08
8xA100-80G.sh | ['EMA=0.9,num_epochs=1'] | EMA=0.9,num_epochs=1; expected a number such as 0.08
8xA100-80G.sh | ['AMP=yes'] | AMP=yes; expected True or False
8xA100-80G.sh | ['DATA=/a', 'datadir=/b'] | DATA=/a and datadir=/b are one setting here
8xA100-80G.sh | ['AMP=False', 'PRECISION=mixed_float16'] | AMP=False and PRECISION=mixed_float16 contradict each other
8xA100-80G.sh | ['--noamp', 'PRECISION=mixed_bfloat16'] | AMP=False and PRECISION=mixed_bfloat16 contradict each other
32xV100-32G.sub | ['ENGINE=mpi'] | ENGINE=mpi; expected one of horovod jax
32xV100-32G.sub | ['ENGINE=jax', 'NGPU=30'] | NGPU=30; expected a multiple of the job's 4 nodes
32xV100-32G.sub | ['datadir=/tmp,/etc:/workspace/coco'] | a comma or colon cannot stand in a container's mounts
"""),
)
def test_refused_before_anything_starts(script, words, message):
    assert message in refusal(D0 / f"convergence-AMP-{script}", *words)


@pytest.mark.parametrize(
    ("script", "env", "message"),
    rows(r"""
convergence-AMP-32xV100-32G.sub | {'ENGINE': 'jax', 'SLURM_JOB_NUM_NODES': 'PATH[$(touch ran)]'} | expected
convergence-AMP-32xV100-32G.sub | {'ENGINE': 'jax', 'NODES': '2', 'SLURM_JOB_NUM_NODES': '4'} | but the job has 4; exp
inference-benchmark.sh | {'bs': '4', 'BS': '8'} | bs=4 and BS=8 are one setting; expected one
inference-benchmark.sh | {'BS': '1,*'} | expected a whole number from 1 on
inference-benchmark.sh | {'BS': '1,PATH[$(touch ran)]'} | expected a whole number from 1 on
"""),
)
def test_variables_are_refused_before_anything_starts(tmp_path, monkeypatch, script, env, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(D0 / script, "--dry_run", env=env)
    assert not list(tmp_path.iterdir())


CHECKED = """NGPU BS EVAL_BS EPOCHS STEPS EXAMPLES RUNS STOP_EPOCH EVAL_SAMPLES SEED LR WARMUP EMA MOMENTUM AMP XLA
    DEVICE ENGINE LAUNCHER CONTAINER PRECISION training_mode"""
SPELLINGS = {"BS": "bs", "LR": "lr", "EPOCHS": "NUMEPOCHS", "WARMUP": "Warmup_Epochs", "training_mode": "TRAINING_MODE"}


@pytest.mark.parametrize(
    "script", ["convergence-AMP-8xA100-80G.sh", "convergence-AMP-32xV100-32G.sub", "inference-benchmark.sh"]
)
@pytest.mark.parametrize("place", ["word", "environment"])
def test_no_setting_is_run_as_a_command(tmp_path, script, place):
    """Bash runs what stands inside a subscript wherever it expects a number."""
    for key in CHECKED.split():
        value, name = f"PATH[$(touch {tmp_path}/ran)]", SPELLINGS.get(key, key)
        words, env = ([f"{name}={value}"], {}) if place == "word" else ([], {name: value})
        done = run(D0 / script, *words, "--dry_run", env=env)
        assert not (tmp_path / "ran").exists(), key
        assert (done.returncode, done.stdout) == (2, ""), key
        assert f"error: {key}=PATH[" in done.stderr


def test_texts_are_quoted_and_never_run(tmp_path):
    value = f"$(touch {tmp_path}/ran) `touch {tmp_path}/ran` ; touch {tmp_path}/ran #'\""
    keys = """DATA TRAIN VAL_JSON CKPT MODEL_DIR BACKBONE HPARAMS IMAGE OUTPUT MODEL MLPERF_LOG BACKBONE_CKPT
        WEIGHTS_DIR DATADIR LOGDIR PRETRAINED_DIR"""
    for key in keys.split():
        for script in ("convergence-AMP-8xA100-80G.sh", "evaluate-AMP-8xA100-80G.sh", "inference.sh"):
            assert run(D0 / script, f"{key}={value}", "--dry_run").returncode in (0, 2)  # 2: not read there
            run(D0 / script, f"{key}={value}", "PYTHON=/bin/true", "DEVICE=cpu", f"MODEL_DIR={tmp_path}/out")
            assert not (tmp_path / "ran").exists(), key
    shown = dry_run(SCRIPT, f"DATA={value}")  # read as a shell reads it
    assert flags_of(shown)["val_file_pattern"] == f"{value}/val-*"


@pytest.mark.parametrize(
    "name", ["a[$(touch ran)]", "BS[$(touch ran)]", "$(touch ran)", "@", "*", "--x[$(touch ran)]", "`touch ran`"]
)
def test_no_name_of_a_setting_is_run_as_a_command(tmp_path, name):
    for script in ("convergence-AMP-8xA100-80G.sh", "convergence-AMP-32xV100-32G.sub"):
        done = run(D0 / script, f"{name}=3", "--dry_run", cwd=tmp_path)
        assert not list(tmp_path.iterdir())
        assert name.startswith("--") or (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_launchers_own_variables_are_not_taken_from_the_environment(tmp_path):
    tables = "ALIASES REFUSED SETTING_OF_FLAG SETTING_BY_NAME EXPECTED LAUNCH_KEYS GIVEN READ_BY INSTEAD"
    for word in ("0=3", "NGPU=1", "--batch_size=3"):
        run(SCRIPT, word, "--dry_run", env=dict.fromkeys(tables.split(), f"x[$(touch {tmp_path}/ran)]"))
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "script",
    [*RECIPES, *(SCRIPTS / name for name in ("demo.sh", "install_horovod.sh"))],
    ids=lambda path: path.name,
)
def test_help_says_what_a_script_is_for_and_starts_nothing(script):
    done = run(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    first = next(line for line in script.read_text().splitlines() if not line.startswith(("#!", "#SBATCH")))
    assert done.stdout.startswith(first.removeprefix("# "))
    if script.parent == D0:
        assert "--dry_run" in done.stdout
        listed = re.search(r"KEY=VALUE.*?one of\n(.*?)\n  \S", done.stdout, re.DOTALL)[1].split()
        assert len(set(listed)) == len(listed) > 10
        assert {"training_mode", "EPOCHS"} <= {*listed} or not script.name.startswith("convergence")
        assert ("CKPT" in listed) == script.name.startswith(("evaluate", "inference"))
    if script.name in NUMBERS and script.name.startswith("convergence") and "JAX" not in script.name:
        numbers = NUMBERS[script.name]
        assert f"NGPU={numbers['processes']} BS={numbers['batch_size']}" in done.stdout
    assert run(script, "nonsense").returncode == 2


def test_too_few_gpus_and_a_missing_checkpoint(tmp_path):
    for name in ("train-0", "val-0"):
        (tmp_path / name).touch()
    here = [f"DATA={tmp_path}", "VAL_JSON=", "PYTHON=/bin/true", f"MODEL_DIR={tmp_path}/model"]
    assert "NGPU=8, but this machine has" in refusal(SCRIPT, *here)
    line = refusal(D0 / "evaluate-AMP-8xA100-80G.sh", *here, "CKPT=/nowhere/ckpt")
    assert "CKPT=/nowhere/ckpt: there is no such checkpoint" in line
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("code", [0, 2, 143])
def test_exit_codes_and_output_pass_through_the_log(tmp_path, code):
    program = executable(tmp_path / "python", f"echo said\necho complained >&2\nexit {code}")
    for name in ("train-0", "val-0"):
        (tmp_path / name).touch()
    done = run(
        D0 / "training-benchmark-AMP-1xA100-80G.sh",
        f"DATA={tmp_path}",
        f"PYTHON={program}",
        "DEVICE=cpu",
        f"MODEL_DIR={tmp_path}/model",
    )
    assert done.returncode == code
    assert {"said", "complained"} <= set(done.stdout.split())
    [log] = (tmp_path / "model").glob("train-*.log")
    assert log.read_text() == "said\ncomplained\n"


def test_sigterm_reaches_the_program_and_its_exit_code_comes_back(tmp_path):
    body = "trap 'sleep 0.5; echo saved; exit 143' TERM\necho ready\nwhile :; do sleep 0.1; done"
    program = executable(tmp_path / "python", body)
    (tmp_path / "train-0").touch()
    process = subprocess.Popen(
        [
            "bash",
            str(D0 / "training-benchmark-AMP-1xA100-80G.sh"),
            f"DATA={tmp_path}",
            f"PYTHON={program}",
            "DEVICE=cpu",
            f"MODEL_DIR={tmp_path}/model",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("saved\n", 143)


@pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None and not os.environ.get("CI"),
    reason="Horovod is not installed: bash scripts/install_horovod.sh",
)
@pytest.mark.slow
def test_three_of_them_for_real_on_two_ranks(tmp_path):
    drawn = draw_records(tmp_path / "data", images={"train": 8, "val": 5})
    small = [
        "NGPU=2",
        "DEVICE=cpu",
        f"DATA={drawn.folder}",
        "BS=2",
        "HPARAMS=image_size=64",
        "BACKBONE=",
        f"PYTHON={forked_programs.python()}",
    ]
    evaluated = [f"VAL_JSON={drawn.annotations('val')}", "EVAL_SAMPLES=0"]
    env = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path_to_miniature(tmp_path)}
    model = tmp_path / "model"
    done = run(
        SCRIPT,
        *small,
        *evaluated,
        "EVAL_BS=2",
        "EPOCHS=1",
        "STOP_EPOCH=1",
        "EXAMPLES=8",
        "LR=0.01",
        "WARMUP=0.5",
        f"MODEL_DIR={model}",
        "--checkpoint_period=1",
        env=env,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert (model / "ema_weights" / "emackpt-1.index").is_file()
    assert (model / "metrics-final.json").is_file()
    done = run(
        D0 / "evaluate-AMP-8xA100-80G.sh",
        *small,
        *evaluated,
        f"CKPT={model}/ema_weights/emackpt-1",
        f"MODEL_DIR={tmp_path}/evaluation",
        env=env,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert len(re.findall(r"AP50 .*precision, IoU 0.50", done.stdout)) == 1  # one rank speaks
    done = run(  # one process: the speed of several is counted in test_journal
        D0 / "training-benchmark-AMP-A100-80G.sh",
        *small,
        "NGPU=1",
        "STEPS=4",
        f"MODEL_DIR={tmp_path}/benchmark",
        env=env,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "avg_fps_training " in done.stdout
    assert not list((tmp_path / "benchmark").glob("ckpt*"))


def test_five_seeds_of_a_recipe(tmp_path):
    """The reference's stability table: five seeds, mean and standard deviation of AP."""
    program = executable(
        tmp_path / "python",
        'if [[ "$1" == - ]]; then shift; exec python3 - "$@"; fi\n'
        '[[ "$*" =~ model_dir=([^ ]+).*seed=([0-9]) ]] || exit 9\n'
        'echo "{\\"AP\\": 0.34${BASH_REMATCH[2]}}" >"${BASH_REMATCH[1]}/metrics-final.json"',
    )
    for name in ("train-0", "val-0"):
        (tmp_path / name).touch()
    words = [f"DATA={tmp_path}", "VAL_JSON=", f"checkpointdir={tmp_path}/runs", "DEVICE=cpu", "NGPU=1", "BACKBONE="]
    recipe = str(D0 / "convergence-AMP-8xV100-32G.sh")
    done = run(SCRIPTS / "seeds.sh", "3", recipe, *words, env={"PYTHON": str(program)})
    assert done.returncode == 0, done.stderr
    assert "seed 2: AP 34.20\n" in done.stdout
    assert done.stdout.endswith("3 seeds: mean AP 34.20, standard deviation 0.10\n")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"convergence-AMP-8xV100-32G-seed-{seed}" for seed in (1, 2, 3)
    }
    for words in ([], ["5"], ["5", "nosuch.sh"], ["5", recipe, "SEED=3"]):
        done = run(SCRIPTS / "seeds.sh", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = run(SCRIPTS / "seeds.sh", "5", str(JOB), "--dry_run")
    assert [flags_of(shlex.split(line))["seed"] for line in done.stdout.splitlines()] == ["1", "2", "3", "4", "5"]
