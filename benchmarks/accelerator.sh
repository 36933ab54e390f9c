#!/usr/bin/env bash
# Measure training step and inference on one accelerator under JAX (without TensorFlow), and effdet; writes $OUT/table.md.
#
#   PYTHON=python3 PEER=peer/bin/python bash benchmarks/accelerator.sh
#   DEVICE=cpu SIZE=128 STEP_BATCHES=2 BS=1 RUNS=2 STEPS=1 PRECISION=float32 bash benchmarks/accelerator.sh   # a trial
#
# Compiling takes most of the time: on an H100 an inference a minute, twice for each batch size, and a step some minutes.
# Where time is limited, name few batch sizes; STEP_BATCHES= or BS= leaves a part out.
#
# PEER is an interpreter with torch and effdet (see benchmarks/peers/peer_effdet.py); without it, only ours is measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${PYTHON:=.venv/bin/python}" "${OUT:=build/accelerator}" "${PRECISION:=mixed_bfloat16}" "${SIZE:=512}" "${DEVICE:=cuda}"
: "${STEP_BATCHES=64,128,200}" "${BS=1,2,4,8,16,32,64,128,256}" "${RUNS:=100}" "${STEPS:=20}" "${PEER:=}"
export KERAS_BACKEND=jax PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"

{
    printf '## Training step\n\n'
    for size in $(tr ',' ' ' <<<"$STEP_BATCHES"); do
        "$PYTHON" benchmarks/training_step.py --size="$SIZE" --batch_size="$size" --steps="$STEPS" --precision="$PRECISION" \
            --boxes 8 # of the 100 slots that XLA always computes
    done
    printf '\n## Inference\n\n'
    reports=()
    for size in $(tr ',' ' ' <<<"$BS"); do
        reports+=("$OUT/batch-$size.json")
        "$PYTHON" inspector.py --mode=benchmark --batch_size="$size" --bm_runs="$RUNS" --precision="$PRECISION" \
            --hparams=image_size="$SIZE" --output_json="$OUT/batch-$size.json" >"$OUT/batch-$size.log"
    done
    [[ -z "$BS" ]] || "$PYTHON" benchmarks/inference_table.py "${reports[@]}"
    if [[ -n "$PEER" ]]; then
        printf '\n## effdet\n\n'
        options=(--device="$DEVICE" --runs="$RUNS")
        [[ -z "$STEP_BATCHES" ]] || options+=(--training="${STEP_BATCHES##*,}")
        [[ "$PRECISION" == float32 ]] || options+=(--bfloat16)
        [[ "$DEVICE" == cpu ]] || options+=(--compile)
        mapfile -t sizes < <(tr ',' '\n' <<<"$BS")
        "$PEER" benchmarks/peers/peer_effdet.py "${options[@]}" --forward "${sizes[@]}"
    fi
} | tee "$OUT/table.md"
