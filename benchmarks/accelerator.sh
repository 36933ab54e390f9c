#!/usr/bin/env bash
# Measure one accelerator in half an hour, under JAX, and write $OUT/table.md; parts that are missing are named at its end.
#
#   RECORDS='records/train-*' VAL='records/val-*' PYTHON=python3 PEER=peer/bin/python bash benchmarks/accelerator.sh
#   DEVICE=cpu SIZE=128 STEP_BATCHES=2 BS=1 RUNS=2 STEPS=1 PRECISION=float32 bash benchmarks/accelerator.sh   # a trial
#
# In this order, each part within its limit in seconds; what an earlier call has finished is kept:
#   1  inference of each batch size of BS=: first call, cold and with a warm cache, network, copy, end to end
#   2  the training step of each batch size of STEP_BATCHES=, and the kernels of ten steps from the profiler
#   3  train.py on RECORDS for EPOCHS=, then resumed for one more epoch (needs TensorFlow, for the input)
#   4  the input alone on 1, 4, 8 and 16 cores (needs TensorFlow)
#   5  effdet: PEER is an interpreter with torch and effdet (see benchmarks/peers/peer_effdet.py)
# An empty list leaves a part out. Delete a part's .txt in OUT to measure it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${PYTHON:=.venv/bin/python}" "${OUT:=build/accelerator}" "${PRECISION:=mixed_bfloat16}" "${SIZE:=512}" "${DEVICE:=cuda}"
: "${STEP_BATCHES=64,128}" "${BS=1,128}" "${RUNS:=100}" "${STEPS:=20}" "${PEER:=}" "${RECORDS:=}" "${VAL:=}" "${EPOCHS:=2}"
export KERAS_BACKEND=jax PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"
OUT="$(realpath "$OUT")"
export XDG_CACHE_HOME="$OUT/cache"
missing=()

# part NAME SECONDS COMMAND...: keep the command's output in NAME.txt if it ends in time without an error.
part() {
    local file="$OUT/$1.txt"
    [[ ! -e "$file" ]] || return 0
    printf '== %s\n' "$1"
    if timeout "$2" "${@:3}" >"$file.new" 2>"$OUT/$1.log"; then
        mv "$file.new" "$file"
        cat "$file"
    else
        missing+=("$1 (exit code $?, see $1.log)")
    fi
}

inference() {
    "$PYTHON" inspector.py --mode=benchmark --batch_size="$1" --bm_runs="$RUNS" --precision="$PRECISION" \
        --hparams=image_size="$SIZE" --output_json="$OUT/$2.json"
}

whole_program() {
    local train=("$PYTHON" train.py --training_file_pattern="$RECORDS" --batch_size="${STEP_BATCHES%%,*}" --model_dir="$OUT/model"
        --precision="$PRECISION" --hparams=image_size="$SIZE" ${VAL:+--val_file_pattern="$VAL"})
    "${train[@]}" --num_epochs="$((EPOCHS + 1))" --stop_epoch="$EPOCHS"
    "${train[@]}" --num_epochs="$((EPOCHS + 1))"
}

export -f inference whole_program
export BS OUT PYTHON PRECISION RECORDS RUNS SIZE STEP_BATCHES VAL EPOCHS
for size in $(tr ',' ' ' <<<"$BS"); do
    [[ -e "$OUT/inference-$size-cold.txt" ]] || rm -rf "$OUT/cache"
    for cache in cold warm; do
        part "inference-$size-$cache" 300 bash -c 'inference "$@"' _ "$size" "inference-$size-$cache"
    done
done
for size in $(tr ',' ' ' <<<"$STEP_BATCHES"); do
    [[ -e "$OUT/step-$size.txt" ]] || rm -rf "$OUT/trace-$size"
    # 8 boxes of the 100 slots that XLA always computes
    part "step-$size" 480 "$PYTHON" benchmarks/training_step.py --size="$SIZE" --batch_size="$size" --steps="$STEPS" \
        --precision="$PRECISION" --boxes 8 --trace="$OUT/trace-$size"
done
if [[ -z "$RECORDS" || -z "$STEP_BATCHES" ]] || ! "$PYTHON" -c 'import tensorflow' 2>"$OUT/tensorflow.log"; then
    missing+=("train.py and the input (RECORDS=, STEP_BATCHES= and TensorFlow)")
else
    part "train" 420 bash -c whole_program
    for cores in 1 4 8 16; do
        ((cores > $(nproc))) || part "input-$cores-cores" 60 taskset -c "0-$((cores - 1))" "$PYTHON" benchmarks/input.py \
            --records="$RECORDS" --size="$SIZE"
    done
fi
if [[ -n "$PEER" ]]; then
    options=(--device="$DEVICE" --runs="$RUNS")
    [[ -z "$STEP_BATCHES" ]] || options+=(--training="${STEP_BATCHES##*,}")
    [[ "$PRECISION" == float32 ]] || options+=(--bfloat16)
    [[ "$DEVICE" == cpu ]] || options+=(--compile)
    sizes=()
    [[ -z "$BS" ]] || mapfile -t sizes < <(tr ',' '\n' <<<"$BS")
    part "effdet" 420 "$PEER" benchmarks/peers/peer_effdet.py "${options[@]}" --forward "${sizes[@]}"
else
    missing+=("effdet (PEER=)")
fi
reports=("$OUT"/inference-*-warm.json)
{
    [[ ! -e "${reports[0]}" ]] || "$PYTHON" benchmarks/inference_table.py "${reports[@]}"
    for file in "$OUT"/*.txt; do
        printf '\n## %s\n\n' "$(basename "$file" .txt)"
        cat "$file"
    done
    printf '\nMissing: %s\n' "$([[ ${#missing[@]} -eq 0 ]] && printf nothing || printf '%s; ' "${missing[@]}")"
} >"$OUT/table.md"
printf 'wrote %s\n' "$OUT/table.md"
