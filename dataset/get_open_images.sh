#!/usr/bin/env bash
# Downloads the tables and images of Open Images or of a subset (resuming after an interruption) and converts them to
# TFRecords. Completed steps are skipped.
set -euo pipefail

usage="usage: bash dataset/get_open_images.sh FOLDER [--classes=mlperf] [--max_images=N] [--splits=validation,train]
  FOLDER, -d FOLDER   output folder for tables (2.5 GB), images (one folder per split) and records: train-*.tfrecord,
                      validation-*.tfrecord
  --classes           mlperf (264 classes; 352 GB of images), a file with one name per line, or names: --classes=Apple,Banana;
                      default: all 601 classes (534 GB)
  --max_images        maximum number of images per split; default: all
  --splits            comma-separated list of train, validation and test; default: validation,train
  --connections       number of parallel downloads; default: 32
  --max_bad_fraction  maximum fraction of images that may be missing on the server or damaged; default: 0.01
  environment: OPEN_IMAGES_TABLES_URL, OPEN_IMAGES_IMAGES_URL (mirrors), PYTHON (the interpreter that has this project installed)"

tables=${OPEN_IMAGES_TABLES_URL:-https://storage.googleapis.com/openimages}
images=${OPEN_IMAGES_IMAGES_URL:-https://open-images-dataset.s3.amazonaws.com}

fail() {
  echo "get_open_images.sh: error: $*" >&2
  exit 2
}

table_of() { # split; the csv of boxes below the address of the tables
  case $1 in
    train) echo v6/oidv6-train-annotations-bbox.csv ;;
    *) echo "v5/$1-annotations-bbox.csv" ;;
  esac
}

transfer() { # url, file to resume; prints the reason of a failure
  local flags=(--fail --location --retry 5 --continue-at - --output "$2")
  if [[ -t 2 ]]; then
    curl "${flags[@]}" --progress-bar "$1"
  else
    curl "${flags[@]}" --silent --show-error "$1" 2>&1
  fi
}

download() { # place below the address of the tables
  local url=$tables/$1 file=$folder/${1##*/} part=$folder/${1##*/}.part why code=0
  if [[ -f $file ]]; then
    echo "$file: already downloaded"
    return
  fi
  echo "$file: downloading $url"
  why=$(transfer "$url" "$part") || code=$?
  if [[ ($code == 22 || $code == 33) && -f $part ]]; then # complete already, or no range requests: start over
    code=0
    rm -f "$part"
    why=$(transfer "$url" "$part") || code=$?
  fi
  [[ $code == 0 ]] || fail "$url: download failed (${why:-curl ends with $code}); run this again to resume"
  mv "$part" "$file"
}

download_images() { # split, file with the ids of its images; a batch of images at a time is downloaded into a folder beside
  local into=$folder/$1 parts=$folder/.$1.parts missing=$folder/$1.missing.txt
  local batch id requests report result url reason complete
  rm -rf "$parts"
  mkdir -p "$into" "$parts"
  : > "$missing"
  while mapfile -t -n 200 batch && [[ ${#batch[@]} -gt 0 ]]; do
    requests=$(for id in "${batch[@]}"; do
      [[ -s $into/$id.jpg ]] || printf 'url = "%s/%s/%s.jpg"\noutput = "%s/%s.jpg"\n' "$images" "$1" "$id" "$parts" "$id"
    done)
    [[ -n $requests ]] || continue
    report=$(curl --config - --parallel --parallel-max "$connections" --fail --location --retry 3 --silent --globoff \
      --connect-timeout 60 --speed-limit 1 --speed-time 60 \
      --write-out '%{url} %{exitcode}/%{http_code}/%{content_type} %{errormsg}\n' <<< "$requests" 2> "$parts/errors") || true
    [[ -n $report ]] || fail "$images/$1: download failed ($(head -n 1 "$parts/errors"))"
    complete=()
    while read -r url result reason; do
      case $result in
        0/*/text/html*) fail "$url: the response is not an image; check for a proxy page" ;;
        0/*) complete+=("$parts/${url##*/}") ;;
        22/40[34]/* | 22/410/*) echo "${url##*/}" >> "$missing" ;; # S3 returns 403 for a missing object
        *) fail "$images/$1: download failed (curl: $url $result $reason); run this again to resume" ;;
      esac
    done <<< "$report"
    [[ ${#complete[@]} == 0 ]] || mv -t "$into" -- "${complete[@]}"
  done < "$2"
  rm -rf "$parts"
  [[ ! -s $missing ]] || echo "the server lacks $(wc -l < "$missing") images, listed in $missing"
}

expectation_of() { # split; the flag that compares the number of images with MLPerf's, for the complete set
  if [[ $classes == mlperf && -z $max_images && $1 != test ]]; then
    echo "--expect=mlperf-$1"
  fi
}

get_split() { # split
  local split=$1 boxes choice settings ids=$folder/$1.images.txt done_mark=$folder/.$1.done expectation converting=()
  boxes=$folder/$(table_of "$split")
  boxes=$folder/${boxes##*/}
  settings="--classes=$classes --max_images=$max_images $(if [[ -f $classes ]]; then cksum < "$classes"; fi)"
  if [[ -f $folder/$split.report.json && -f $done_mark && $(< "$done_mark") == "$settings" ]]; then
    echo "$folder/$split-*.tfrecord: already converted"
    return
  fi
  rm -f "$done_mark"
  download "$(table_of "$split")"
  choice=(--object_annotations_file="$boxes" --class_descriptions_file="$folder/class-descriptions-boxable.csv"
    --classes="$classes" --max_bad_fraction="$max_bad_fraction")
  expectation=$(expectation_of "$split")
  "$python" "$root/dataset/create_open_images_tfrecord.py" "${choice[@]}" ${expectation:+"$expectation"} \
    --list_images="$ids"
  if [[ -n $max_images ]]; then
    head -n "$max_images" "$ids" > "$ids.part"
    mv "$ids.part" "$ids"
  fi
  download_images "$split" "$ids"
  if [[ -n $max_images ]]; then
    converting=(--image_ids_file="$ids")
  elif [[ $split == train && (-z $classes || $classes == mlperf) ]]; then
    converting=(--num_shards=1024)
  fi
  "$python" "$root/dataset/create_open_images_tfrecord.py" "${choice[@]}" ${expectation:+"$expectation"} \
    --image_dir="$folder/$split" --output_file_prefix="$folder/$split" "${converting[@]}"
  echo "$settings" > "$done_mark"
}

if [[ ${1:-} == -d ]]; then # of download_openimages_mlperf.sh
  shift
fi
[[ $# -ge 1 && -n $1 && $1 != -* ]] || {
  echo "$usage" >&2
  exit 2
}
classes="" max_images="" splits=validation,train connections=32 max_bad_fraction=0.01
for argument in "${@:2}"; do
  case $argument in
    --classes=*) classes=${argument#*=} ;;
    --max_images=*) max_images=${argument#*=} ;;
    --splits=*) splits=${argument#*=} ;;
    --connections=*) connections=${argument#*=} ;;
    --max_bad_fraction=*) max_bad_fraction=${argument#*=} ;;
    *) fail "$argument: unknown option; see bash dataset/get_open_images.sh --help" ;;
  esac
done
[[ $max_images != *[!0-9]* ]] || fail "--max_images=$max_images: expected an integer"
IFS=, read -r -a chosen_splits <<< "$splits"
[[ ${#chosen_splits[@]} -gt 0 ]] || fail "--splits=: expected train, validation or test, with commas between them"
for split in "${chosen_splits[@]}"; do
  case $split in
    train | validation | test) ;;
    *) fail "--splits=$splits: expected train, validation or test, with commas between them" ;;
  esac
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v curl > /dev/null || fail "curl is not installed"
python=${PYTHON:-$root/.venv/bin/python}
if [[ -z ${PYTHON:-} && ! -x $python ]]; then
  python=python3
fi
command -v "$python" > /dev/null || fail "no Python found: install the project or set PYTHON"
mkdir -p "$1" || fail "$1: cannot be created"
folder=$(cd "$1" && pwd)

# MLPerf's class list uses the names of V5.
download v5/class-descriptions-boxable.csv
for split in "${chosen_splits[@]}"; do
  get_split "$split"
done
echo "records: ${chosen_splits[*]/%/-*.tfrecord} in $folder; the tables and image folders can be deleted"
