# shellcheck shell=bash
# Settings of a model, independent of the machine: folder of its data, evaluation schedule, target AP, and learning rate per batch
# size. Sourced by ../launch.sh.

# data_name: the default folder of a model's data.
data_name() {
    case "${MODEL:-}" in
    retinanet-*) printf 'openimages' ;;
    *) printf 'coco' ;;
    esac
}

# The backbone that NVIDIA's recipes mount: scripts/docker/interactive.sh and the .sub recipes put BACKBONE_CKPT there.
MOUNTED_BACKBONE=/workspace/checkpoints/efficientnet-b0-joc

# has_files FOLDER: whether the folder exists and holds a file.
has_files() {
    [[ -n "$(compgen -G "$1/*" || true)" ]]
}

# default_backbone: if BACKBONE is not set, use BACKBONE_CKPT, or for D0 the mounted backbone.
default_backbone() {
    [[ ! -v BACKBONE ]] || return 0
    if [[ -n "${BACKBONE_CKPT:-}" ]]; then
        BACKBONE="$BACKBONE_CKPT"
    elif [[ "$MODEL" == efficientdet-d0 ]] && has_files "$MOUNTED_BACKBONE"; then
        BACKBONE="$MOUNTED_BACKBONE"
    fi
}

# defaults_of_model: set what neither the user nor the recipe has set.
defaults_of_model() {
    : "${MODEL:=efficientdet-d0}"
    : "${DATA:=${datadir:-/workspace/$(data_name)}}"
    default_backbone
    case "$MODEL" in
    retinanet-*) # mlcommons/training, single_stage_detector: evaluated after every epoch, until 0.34
        : "${VAL:=$DATA/validation-*}" "${VAL_JSON=}" "${TARGET_AP=0.34}" "${CHECKPOINT_PERIOD=1}"
        : "${BACKBONE=imagenet}"
        ;;
    ssd300-*) # its rules of v0.7: evaluated after these epochs, until 0.23
        : "${TARGET_AP=0.23}" "${CHECKPOINT_PERIOD=5}"
        [[ -n "${EVAL_PERIOD:-}${EVAL_FROM:-}" ]] || : "${EVAL_EPOCHS=40,50,55,60,65,70,75,80}"
        : "${EPOCHS:=80}" "${BACKBONE=imagenet}"
        ;;
    mask-rcnn-*) # MLPerf's rules: evaluated after every epoch, until 0.377 of the boxes (and 0.339 of the masks)
        : "${TARGET_AP=0.377}" "${CHECKPOINT_PERIOD=1}" "${EPOCHS:=14}" "${BACKBONE=imagenet}"
        ;;
    *) # NVIDIA's recipes of EfficientDet
        : "${STOP_EPOCH=300}" "${CHECKPOINT_PERIOD=10}" "${EXAMPLES=120000}" "${EVAL_SAMPLES=5000}"
        [[ -n "${EVAL_EPOCHS:-}" ]] || : "${EVAL_FROM=200}"
        ;;
    esac
    [[ -n "${EVAL_EPOCHS:-}" ]] || : "${EVAL_PERIOD=$CHECKPOINT_PERIOD}" # as in the reference, where one flag is both
    : "${TRAIN:=$DATA/train-*}" "${VAL:=$DATA/val-*}"
    : "${VAL_JSON=$DATA/annotations/instances_val2017.json}"
    : "${MODEL_DIR:=${checkpointdir:-/tmp}/${SYSTEM:-$(basename "$0" | sed 's/\.[a-z]*$//')}}" "${PYTHON:=$ROOT/.venv/bin/python}"
}

# default_mlperf_log: MLPERF_LOG in MODEL_DIR for the models of MLPerf, where mlperf-logging is installed; in a container of a .sub
# recipe it is. MLPERF_LOG= (empty) writes none.
default_mlperf_log() {
    [[ ! -v MLPERF_LOG && "$MODEL" != efficientdet-* ]] || return 0
    if [[ -x "$PYTHON" ]] && ! has_package mlperf_logging; then
        printf "%s: no MLPerf log: mlperf-logging is not installed; pip install -e '.[mlperf]' adds it\n" "${0##*/}" >&2
        return
    fi
    MLPERF_LOG="$MODEL_DIR/mlperf.log"
}

# has_package NAME: whether the interpreter of the recipe finds a Python package.
has_package() {
    "$PYTHON" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))" </dev/null >/dev/null 2>&1
}

# _rate: set LR from LR_PER_32 if no LR was given, and warn of a learning rate that is known to fail with the batch size.
_rate() {
    local images=$((NGPU * BS))
    if [[ -n "${GIVEN[LR_PER_32]:-}" && -n "${LR_PER_32:-}" ]]; then
        [[ -z "${GIVEN[LR]:-}" || -z "${LR:-}" ]] || fail "LR=$LR and LR_PER_32=$LR_PER_32 are one setting; expected one of them"
        LR="" # the recipe's
    fi
    if [[ -z "${LR:-}" && -n "${LR_PER_32:-}" ]]; then
        # The published programs round SSD's learning rate to a multiple of 2.5e-3: 2.92e-3 for 32 is 0.0475 for 512, not 0.04672.
        LR="$(LC_ALL=C awk -v rate="$LR_PER_32" -v images="$images" 'BEGIN {
            multiples = int(rate / 2.5e-3 * images / 32 + 0.5); printf "%.10g", 2.5e-3 * (multiples < 1 ? 1 : multiples)}')"
    fi
    if [[ "$MODEL" == retinanet-* && -n "${LR:-}" ]] && ((images <= 64)) &&
        LC_ALL=C awk -v rate="$LR" 'BEGIN {exit !(rate > 6e-5)}'; then
        printf '%s: warning: %s images per step at LR=%s: 56 at 1e-4 did not reach 0.34, 64 at 6e-5 did; LR=6e-5 is advised\n' \
            "${0##*/}" "$images" "$LR" >&2
    fi
}
