# shellcheck shell=bash disable=SC2154
# Build the command of one process, and of several processes under a launcher, from the settings. Sourced by ../launch.sh.

# build VERB FLAG...: set the array `command` to the command of one process.
build() {
    local verb="$1"
    shift
    check_values
    : "${NGPU:=1}" "${DEVICE:=gpu}" "${ENGINE:=horovod}" "${LAUNCHER:=horovodrun}"
    defaults_of_model
    _choose_precision
    [[ "$verb" == infer ]] || : "${AMP:=True}" "${XLA:=True}"
    "_${verb}_command" "$@"
    command+=("${extra[@]}")
    local variables=(${WEIGHTS_DIR:+"EFFICIENTDET_WEIGHTS=$WEIGHTS_DIR"})
    [[ "$ENGINE" != jax ]] || variables+=(KERAS_BACKEND=jax)
    [[ "$DEVICE" != cpu ]] || variables+=(CUDA_VISIBLE_DEVICES=)
    ((${#variables[@]} == 0)) || command=(env "${variables[@]}" "${command[@]}")
}

# print_command WORD...: print it as one quoted line for a shell.
print_command() {
    printf '%q ' "$@"
    printf '\n'
}

# _choose_precision: the user's AMP or PRECISION replaces the recipe's. On a CPU mixed precision and XLA are slower, so off by default.
_choose_precision() {
    local is_full="" amp="${GIVEN[AMP]:+${AMP:-}}" precision="${GIVEN[PRECISION]:+${PRECISION:-}}"
    [[ "$DEVICE" != cpu || -n "${GIVEN[XLA]:-}" ]] || XLA=False
    [[ "${amp,,}" != false && "$amp" != 0 ]] || is_full=yes
    if [[ -n "$amp" && -n "$precision" ]]; then
        [[ "${is_full:-no}" == "$([[ "$precision" != float32 ]] && echo no || echo yes)" ]] ||
            fail "AMP=$amp and PRECISION=$precision contradict each other; expected one of them"
    elif [[ -n "$amp" ]]; then
        PRECISION=""
    elif [[ -z "$precision" && "$DEVICE" == cpu ]]; then
        AMP=False PRECISION=""
    fi
}

_precision_flags() {
    if [[ -n "${PRECISION:-}" ]]; then
        command+=("--precision=$PRECISION")
    elif [[ -n "${AMP:-}" ]]; then
        command+=("--amp=$AMP")
    fi
    [[ -z "${XLA:-}" ]] || command+=("--use_xla=$XLA")
}

# Add the number of devices of the process under JAX. Over Horovod a process has one.
_devices_flag() {
    [[ "$ENGINE" != jax ]] || command+=("--num_devices=${devices_of_process:-$NGPU}")
}

# Add --hparams with the settings that are hyperparameters, if any has a value.
_hparams() {
    local hparams="${EMA:+,moving_average_decay=$EMA}${MOMENTUM:+,momentum=$MOMENTUM}${DECAY:+,weight_decay=$DECAY}"
    hparams+="${DROPS:+,first_lr_drop_epoch=${DROPS%,*},second_lr_drop_epoch=${DROPS#*,}}"
    hparams+="${HPARAMS:+,$HPARAMS}"
    [[ -z "$hparams" ]] || command+=("--hparams=${hparams#,}")
}

_train_command() {
    _rate
    : "${BACKBONE=imagenet}"
    default_mlperf_log
    command=("$PYTHON" "$ROOT/train.py" "--training_mode=${training_mode:=traineval}" "--training_file_pattern=$TRAIN"
        "--val_file_pattern=$VAL" ${VAL_JSON:+"--val_json_file=$VAL_JSON"} "--model_name=$MODEL" "--model_dir=$MODEL_DIR"
        ${BACKBONE:+"--backbone_init=$BACKBONE"} "--batch_size=$BS" "--eval_batch_size=$EVAL_BS" "--num_epochs=$EPOCHS"
        ${STOP_EPOCH:+"--stop_epoch=$STOP_EPOCH"} ${EVAL_FROM:+"--eval_from=$EVAL_FROM"}
        ${EVAL_PERIOD:+"--eval_period=$EVAL_PERIOD"} ${EVAL_EPOCHS:+"--eval_epochs=$EVAL_EPOCHS"}
        ${TARGET_AP:+"--target_ap=$TARGET_AP"} ${CHECKPOINT_PERIOD:+"--checkpoint_period=$CHECKPOINT_PERIOD"}
        ${EXAMPLES:+"--num_examples_per_epoch=$EXAMPLES"} ${EVAL_SAMPLES:+"--eval_samples=$EVAL_SAMPLES"}
        ${BN_GROUP:+"--bn_group=$BN_GROUP"} ${LR:+"--lr=$LR"} ${WARMUP:+"--warmup_epochs=$WARMUP"} ${SEED:+"--seed=$SEED"}
        ${MLPERF_LOG:+"--mlperf_log=$MLPERF_LOG"})
    _devices_flag
    _precision_flags
    _hparams
    command+=("$@")
}

_benchmark_training_command() {
    command=("$PYTHON" "$ROOT/train.py" "--training_mode=train300" "--training_file_pattern=$TRAIN" "--model_name=$MODEL"
        "--model_dir=$MODEL_DIR" ${BACKBONE:+"--backbone_init=$BACKBONE"} "--batch_size=$BS" "--num_epochs=1" ${LR:+"--lr=$LR"}
        ${WARMUP:+"--warmup_epochs=$WARMUP"} ${SEED:+"--seed=$SEED"} "--benchmark=True" "--benchmark_steps=${STEPS:-500}")
    _devices_flag
    _precision_flags
    _hparams
    command+=("$@")
}

_evaluate_command() {
    : "${CKPT:=/checkpoints/emackpt-300}"
    command=("$PYTHON" "$ROOT/eval.py" "--val_file_pattern=$VAL" ${VAL_JSON:+"--val_json_file=$VAL_JSON"} "--model_name=$MODEL"
        "--ckpt_path=$CKPT" "--batch_size=$BS" ${EVAL_SAMPLES:+"--eval_samples=$EVAL_SAMPLES"})
    _precision_flags
    _hparams
    command+=("$@")
}

_infer_command() {
    : "${IMAGE:=$ROOT/testdata/img1.jpg}" "${OUTPUT:=/tmp/inference}"
    command=("$PYTHON" "$ROOT/infer.py" "--image_path=$IMAGE" "--output_dir=$OUTPUT" "--model_dir=${CKPT:-$MODEL_DIR}"
        ${GIVEN[MODEL]:+"--model_name=$MODEL"} ${BS:+"--batch_size=$BS"} ${HPARAMS:+"--hparams=$HPARAMS"})
    _precision_flags
    command+=("$@")
}

_inspect_command() {
    command=("$PYTHON" "$ROOT/inspector.py" "--model_name=$MODEL" "--mode=benchmark" "--batch_size=$BS"
        "--bm_runs=${RUNS:-100}" ${CKPT:+"--ckpt_path=$CKPT"} ${HPARAMS:+"--hparams=$HPARAMS"})
    _precision_flags
    command+=("$@")
}

# Put the command under a launcher if there are several processes. In a Slurm step, srun has started them. Under JAX, one process
# uses all devices of the machine.
_ranks() {
    if ((NGPU == 1)) || [[ "$ENGINE" == jax || -n "${SLURM_STEP_NUM_TASKS:-}" ]]; then
        return
    fi
    case "$LAUNCHER" in
    horovodrun) command=("$PYTHON" "$ROOT/scripts/horovodrun.py" --gloo -np "$NGPU" "${command[@]}") ;;
    mpirun)
        # OpenMPI kills one second after SIGTERM, which is too soon for a checkpoint.
        command=(mpirun -np "$NGPU" --allow-run-as-root --bind-to none -map-by slot -x LD_LIBRARY_PATH -x PATH
            -mca pml ob1 -mca btl ^openib -mca odls_base_sigkill_timeout 60 "${command[@]}")
        ;;
    esac
}
