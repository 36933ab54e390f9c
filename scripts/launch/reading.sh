# shellcheck shell=bash disable=SC2154
# The settings that a recipe reads. Any other one that the user gave is refused, because the run would not be the one that was asked
# for. Sourced by ../launch.sh.

declare -A READ_BY=( # verb -> its settings, beside those of every verb
    [every]="MODEL MODEL_DIR checkpointdir HPARAMS BS DEVICE ENGINE AMP PRECISION XLA PYTHON WEIGHTS_DIR"
    [train]="DATA datadir TRAIN VAL VAL_JSON BACKBONE BACKBONE_CKPT NGPU EVAL_BS EPOCHS STOP_EPOCH LR LR_PER_32 WARMUP DECAY DROPS
        EMA MOMENTUM BN_GROUP EXAMPLES EVAL_SAMPLES EVAL_FROM EVAL_PERIOD EVAL_EPOCHS CHECKPOINT_PERIOD TARGET_AP SEED MLPERF_LOG
        training_mode CONTAINER IMAGE_TAG"
    [benchmark_training]="DATA datadir TRAIN BACKBONE BACKBONE_CKPT NGPU LR WARMUP DECAY DROPS EMA MOMENTUM STEPS SEED CONTAINER
        IMAGE_TAG"
    [evaluate]="DATA datadir VAL VAL_JSON CKPT NGPU EMA EVAL_SAMPLES CONTAINER IMAGE_TAG"
    [infer]="CKPT IMAGE OUTPUT"
    [inspect]="CKPT RUNS"
)
declare -A INSTEAD=( # setting -> what to do where it is not read
    [IMAGE_TAG]="CONTAINER=docker runs a training or an evaluation in this image"
    [OUTPUT]="MODEL_DIR= names the folder of the output"
    [GPUS]="NGPU= is the number of GPUs"
    [SYSTEM]="scripts/retinanet, scripts/ssd and scripts/mask_rcnn have recipes with published systems"
    [LAUNCHER]="srun or the engine starts the processes"
    [PYTHON]="the container has its own"
)

# settings_read FILE VERB: print the settings that a recipe reads.
settings_read() {
    local read="${READ_BY[every]} ${READ_BY[$2]}" is_job="" has_systems="" container="${CONTAINER:-none}" recipe
    recipe="$(<"$1")"
    [[ "$recipe" != *$'\nsubmit'* ]] || is_job=yes container="${CONTAINER:-pyxis}"
    [[ "$recipe" != *_published_system* ]] || has_systems=yes
    [[ -z "$is_job$has_systems" ]] || read+=" NODES"
    [[ -z "$has_systems" ]] || read+=" SYSTEM GPUS"
    [[ -z "$is_job" || -z "$has_systems" ]] || read+=" CORES NETWORK"
    [[ -n "$is_job" || "${ENGINE:-}" == jax || " $read " != *" NGPU "* ]] || read+=" LAUNCHER"
    # shellcheck disable=SC2086 # without line breaks
    printf -v read '%s ' $read
    [[ "$container" != none ]] || read="${read/ IMAGE_TAG/}"
    [[ "$container" == none ]] || read="${read/ PYTHON/}"
    printf '%s' "$read"
}

# refuse_unread VERB: fail if the user gave a setting that the recipe does not read. Flags reach the program, which checks them.
refuse_unread() {
    local key name read
    read=" $(settings_read "$0" "$1")"
    for key in "${LAUNCH_KEYS[@]}"; do
        name="${GIVEN[$key]:-}"
        if [[ -z "$name" || "$name" == --* || -z "${!key}" || "$read" == *" $key "* ]]; then
            continue
        fi
        [[ "$name" == "$key" ]] && name="" || name=" (given as $name)"
        fail "$key=${!key}$name is not read here${INSTEAD[$key]:+: ${INSTEAD[$key]}}; expected some of${read% }"
    done
}
