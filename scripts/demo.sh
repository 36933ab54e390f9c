#!/usr/bin/env bash
# Demo of the complete pipeline: draw a data set, convert it to TFRecords, train an EfficientDet, evaluate it and annotate images,
# each with the program that a user would run. Results of an earlier call are reused.
#
#   bash scripts/demo.sh            into build/demo
#   DEMO_DIR=/tmp/demo bash scripts/demo.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
takes_no_words "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
use_environment

folder="${DEMO_DIR:-build/demo}"
data="$folder/data" records="$folder/records" model="$folder/model" annotated="$folder/annotated"
hparams="image_size=128,anchor_scale=2.0,max_level=6,fpn_cell_repeats=2,box_class_repeats=2"
hparams+=",jitter_min=0.9,jitter_max=1.1"
started=$SECONDS

# stage NAME FILE COMMAND...: run the command unless FILE exists, and log which.
stage() {
    local name="$1" result="$2"
    shift 2
    if [[ -e "$result" ]]; then
        printf '== %s: reuses %s\n' "$name" "$result"
        return
    fi
    printf '== %s\n' "$name"
    "$@"
}

convert() {
    "$PYTHON" dataset/create_coco_tfrecord.py --image_dir="$data/$1" --num_shards=4 \
        --object_annotations_file="$data/annotations/instances_$1.json" --output_file_prefix="$records/$1"
}

stage "draw images" "$data/annotations/instances_val.json" \
    "$PYTHON" -m dataset.synthetic --output_dir="$data" --train_images=1000 --val_images=100 --image_size=128x128 --seed=1
for split in train val; do
    stage "convert $split" "$records/$split.report.json" convert "$split"
done
stage "train" "$model/metrics-final.json" \
    "$PYTHON" train.py --training_file_pattern="$records/train-*" --model_dir="$model" \
    --val_file_pattern="$records/val-*" --val_json_file="$data/annotations/instances_val.json" --eval_batch_size=20 \
    --batch_size=8 --num_epochs=8 --lr=0.16 --warmup_epochs=0.5 --checkpoint_period=8 --warn_of_lr=False --hparams="$hparams"
stage "evaluate" "$folder/metrics.json" \
    "$PYTHON" eval.py --ckpt="$model" --val_file_pattern="$records/val-*" \
    --val_json_file="$data/annotations/instances_val.json" --batch_size=20 --output_json="$folder/metrics.json"
stage "annotate" "$annotated/detections.json" \
    "$PYTHON" infer.py --saved_model_dir="$model/emackpt-final" --image_path="$data/val" --output_dir="$annotated"

printf '%s\n' "$annotated"/*.jpg
"$PYTHON" - "$folder/metrics.json" "$((SECONDS - started))" <<'EOF'
import json
import sys

with open(sys.argv[1]) as file:
    numbers = json.load(file)
print(f"demo: AP={numbers['AP']:.3f} AP50={numbers['AP50']:.3f} minutes={int(sys.argv[2]) / 60:.1f}")
EOF
