#!/usr/bin/env bash
# Downloads COCO 2017 (resuming after an interruption), verifies and unpacks it, and converts it to TFRecords.
# Completed steps are skipped. COCO_MASKS=1 also stores masks, for Mask R-CNN, in a separate folder.
set -euo pipefail

usage="usage: bash dataset/get_coco.sh [FOLDER]
  FOLDER (default: /workspace/coco in the container, else ./coco): output folder for the archives (20 GB), the images (20 GB)
         and the records (20 GB): train-*.tfrecord, val-*.tfrecord
  environment: COCO_URL (a mirror), PYTHON (the interpreter that has this project installed)"

train_md5=${COCO_TRAIN_MD5:-cced6f7f71b7629ddf16f17bbcfab6b2}
val_md5=${COCO_VAL_MD5:-442b8da7639aecaf257c1dceb8ba8c80}
annotations_md5=${COCO_ANNOTATIONS_MD5:-f4bbac642086de4f52a3fdda2de5fa2c}
site=${COCO_URL:-http://images.cocodataset.org}

fail() {
  echo "get_coco.sh: error: $*" >&2
  exit 2
}

has_md5() { # file, md5
  local found
  found=$(md5sum "$1")
  [[ ${found%% *} == "$2" ]]
}

download() { # url, file, md5
  local url=$1 file=$2 md5=$3 part=$2.part
  if [[ -f $file ]]; then
    has_md5 "$file" "$md5" || fail "$file: MD5 mismatch; expected $md5; delete it and run this again"
    echo "$file: complete, already downloaded"
    return
  fi
  # A complete partial file cannot be resumed: the server would return an error.
  if ! [[ -f $part ]] || ! has_md5 "$part" "$md5"; then
    echo "$file: downloading $url"
    curl --fail --location --retry 5 --continue-at - --output "$part" "$url" ||
      fail "$url: download failed; run this again to resume"
    if ! has_md5 "$part" "$md5"; then
      rm -f "$part"
      fail "$url: MD5 mismatch in the download; expected $md5; the file is deleted, run this again"
    fi
  fi
  mv "$part" "$file"
}

fetch() { # name of the archive, folder on the site, md5
  local name=$1 place=$2 md5=$3 done_mark=$folder/.$1.unpacked
  if [[ -f $done_mark ]]; then
    echo "$name: already unpacked"
    return
  fi
  download "$site/$place/$name.zip" "$folder/$name.zip" "$md5"
  echo "$name: unpacking"
  unzip -q -o "$folder/$name.zip" -d "$folder" || fail "$folder/$name.zip: could not be unpacked"
  touch "$done_mark"
}

convert() { # prefix, images, annotations, number of shards
  if [[ -f $folder/$1.report.json ]]; then # the converter writes the report last
    echo "$folder/$1-*.tfrecord: already converted"
    return
  fi
  "$python" "$root/dataset/create_coco_tfrecord.py" --image_dir="$folder/$2" \
    --object_annotations_file="$folder/annotations/$3" --output_file_prefix="$folder/$1" --num_shards="$4" \
    ${COCO_MASKS:+--include_masks}
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  echo "$usage"
  exit
fi
if [[ $# -gt 1 || ${1:-} == -* ]]; then
  echo "$usage" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for tool in curl unzip md5sum; do
  command -v "$tool" > /dev/null || fail "$tool is not installed"
done
python=${PYTHON:-$root/.venv/bin/python}
if [[ -z ${PYTHON:-} && ! -x $python ]]; then
  python=python3
fi
command -v "$python" > /dev/null || fail "no Python found: install the project or set PYTHON"
target=${1:-coco}
if [[ -z ${1:-} && -d /workspace && -w /workspace ]]; then
  target=/workspace/coco # where the recipes look for it
fi
mkdir -p "$target" || fail "$target: cannot be created"
folder=$(cd "$target" && pwd)
echo "COCO 2017: output folder $folder"

fetch annotations_trainval2017 annotations "$annotations_md5"
fetch val2017 zips "$val_md5"
fetch train2017 zips "$train_md5"
# Only instances_*.json hold boxes.
convert val val2017 instances_val2017.json 32
convert train train2017 instances_train2017.json 256
echo "records: $folder/train-*.tfrecord, $folder/val-*.tfrecord; the archives and image folders can be deleted"
