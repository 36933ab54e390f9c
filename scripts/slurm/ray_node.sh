#!/usr/bin/env bash
# Run one node of Ray in a step of ray.sub until a signal: ray_node.sh head, or ray_node.sh ADDRESS for the others. Not for users.
set -uo pipefail
if [[ "$1" == head ]]; then
    folder="/tmp/ray-$SLURM_JOB_ID-head"
    # The port of Ray's client server, which nothing here uses, cannot be left to Ray
    port="$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')"
    role=(--head --port=0 --include-dashboard=false "--ray-client-server-port=$port")
else
    folder="/tmp/ray-$SLURM_JOB_ID-${SLURM_NODEID:-0}"
    role=("--address=$1")
fi
rm -rf "$folder" # of an earlier run of a requeued job
mkdir -m 700 "$folder" || exit 2
trap 'rm -rf "$folder"' EXIT
ray start "${role[@]}" --block --disable-usage-stats --log-color=false "--temp-dir=$folder" --dashboard-agent-listen-port=0 \
    ${SLURM_CPUS_ON_NODE:+"--num-cpus=$SLURM_CPUS_ON_NODE"} >"$folder/start.log" 2>&1 &
ray=$! asked=""
trap 'asked=yes; kill -TERM "$ray" 2>/dev/null' TERM INT
wait "$ray"
status=$?
while kill -0 "$ray" 2>/dev/null; do # a signal ended the first `wait`
    wait "$ray"
done
[[ -z "$asked" ]] || exit 0
reason="$(grep -m 1 -F '[exit code=' "$folder/start.log" || tail -n 1 "$folder/start.log")" # the process that ended first
printf '%s: Ray ended with exit code %d: %s\n' "$(hostname)" "$status" "$reason" >&2
exit 1
