# shellcheck shell=bash disable=SC2154
# Recipes in a container: folders of the host become mounts, and paths of the host become paths of the container. Sourced by
# ../launch.sh.
#
# checkpointdir and datadir are mounted at /workspace/checkpoints and /workspace/coco as in the reference (RetinaNet:
# /workspace/openimages), BACKBONE_CKPT at /workspace/checkpoints/efficientnet-b0-joc, WEIGHTS_DIR at /workspace/weights, and a CKPT
# outside checkpointdir at /workspace/checkpoint. A path below /workspace is already one of the container.

HOST_PATHS=(MODEL_DIR CKPT DATA datadir checkpointdir BACKBONE_CKPT WEIGHTS_DIR) # settings
mounts=() host_folders=()

# enter_container: set `mounts`, and replace paths of the host in the settings.
enter_container() {
    local key
    for key in "${HOST_PATHS[@]}"; do
        [[ -z "${!key:-}" || "${!key}" == /* ]] || printf -v "$key" '%s' "$PWD/${!key}"
    done
    if [[ -n "${MODEL_DIR:-}" && "$MODEL_DIR" != /workspace/* && -z "${GIVEN[checkpointdir]:-}" ]]; then
        checkpointdir="$(dirname "$MODEL_DIR")"
    fi
    if [[ -z "${datadir:-}" && -n "${DATA:-}" && "$DATA" != /workspace/* ]]; then
        datadir="$DATA" DATA=""
    fi
    : "${checkpointdir:=/checkpoints}" "${datadir:=/data/$(data_name)}"
    _mount checkpointdir /workspace/checkpoints
    _mount datadir "/workspace/$(data_name)"
    if [[ -n "${BACKBONE_CKPT:-}" ]]; then
        _mount BACKBONE_CKPT "$MOUNTED_BACKBONE"
        : "${BACKBONE=$MOUNTED_BACKBONE}"
    elif [[ "${MODEL:-efficientdet-d0}" == efficientdet-d0 ]] && has_files "$checkpointdir/${MOUNTED_BACKBONE##*/}"; then
        : "${BACKBONE=$MOUNTED_BACKBONE}"
    fi
    [[ -z "${WEIGHTS_DIR:-}" ]] || _mount WEIGHTS_DIR /workspace/weights
    _mount_checkpoint
    for key in MODEL_DIR CKPT DATA TRAIN VAL VAL_JSON BACKBONE MLPERF_LOG WEIGHTS_DIR; do
        _inside "$key"
    done
    : "${DATA:=/workspace/$(data_name)}"
    # shellcheck disable=SC2034 # the launcher uses them
    PYTHON=/workspace/effdet-tf2/.venv/bin/python ROOT=/workspace/effdet-tf2
}

# docker_command: set `step` to the command of a container that runs as this user on the host's network, as the published programs do.
docker_command() {
    local mount
    step=(docker run --rm --init --net=host --uts=host --ipc=host --ulimit "stack=67108864" --ulimit "memlock=-1"
        --user "$(id -u):$(id -g)" --env HOME=/tmp --env TF_GPU_HOST_MEM_LIMIT_IN_MB)
    [[ "${DEVICE:-gpu}" != gpu ]] || step+=(--gpus all)
    for mount in "${mounts[@]}"; do
        step+=(-v "$mount")
    done
    step+=("$IMAGE_TAG")
}

# check_host_folders: fail if a mounted folder is missing.
check_host_folders() {
    local folder
    for folder in "${host_folders[@]}"; do
        [[ -d "${folder#*=}" ]] || fail "$folder: there is no such folder"
    done
}

# _mount SETTING TARGET: mount the folder that a setting names.
_mount() {
    local path="${!1%/}"
    [[ "$path" != *[,:]* ]] || fail "$path: a comma or colon cannot stand in a container's mounts"
    mounts+=("$path:$2")
    host_folders+=("$1=$path")
}

# Mount the folder of a checkpoint that no other mount has.
_mount_checkpoint() {
    local found="${CKPT:-}" folder
    _inside found
    [[ -n "$found" && "$found" != /workspace/* ]] || return 0
    folder="$(dirname "$found")"
    _mount folder /workspace/checkpoint
}

# _inside SETTING: turn the path of the host in a setting into the path of the container, if it is mounted.
_inside() {
    local mount source
    for mount in "${mounts[@]}"; do
        source="${mount%%:*}"
        if [[ "${!1:-}" == "$source" || "${!1:-}" == "$source"/* ]]; then
            printf -v "$1" '%s' "${mount##*:}${!1#"$source"}"
            return
        fi
    done
}
