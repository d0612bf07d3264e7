#!/usr/bin/env bash
# A sweep in the background on a machine that has no network, in the folder that tools/offline.py packed; see docs/offline.md.
#   tools/sweep.sh start SCALE JOBS [OPTIONS] -- TARGETS...  JOBS at a time on each card, which several share by NVIDIA's MPS
#   tools/sweep.sh collect SCALE FILE [SECONDS]              wait so long or until the end; archive what is new since the last
set -euo pipefail

usage() {
    sed -n '3,4s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

start() {
    local scale=$1 jobs=$2 cards targets
    shift 2
    targets=("$@")
    while [ ${#targets[@]} -gt 0 ] && [ "${targets[0]}" != -- ]; do targets=("${targets[@]:1}"); done
    # Without a target Snakemake would make all.
    [[ $jobs =~ ^[1-9][0-9]*$ ]] && [ ${#targets[@]} -gt 1 ] || usage
    if [ -f "$state/running" ] && kill -0 "$(cat "$state/running")" 2> /dev/null; then
        echo "error: a sweep is running here, process $(cat "$state/running")" >&2
        exit 1
    fi
    cards=$(nvidia-smi -L | wc -l)
    mkdir -p "$state"
    rm -f "$state/ended"
    if [ "$jobs" -gt 1 ]; then
        # Else each job starts a compiling process for every core.
        export TORCHINDUCTOR_COMPILE_THREADS="${TORCHINDUCTOR_COMPILE_THREADS:-4}"
        export CUDA_MPS_PIPE_DIRECTORY="$PWD/$state/mps" CUDA_MPS_LOG_DIRECTORY="$PWD/$state/mps"
        mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
        nvidia-cuda-mps-control -d || true # one that runs already serves as well
    fi
    printf '%s\n' "${targets[@]:1}" > "$state/targets"
    setsid nohup bash -c 'python3 -m snakemake "$@" > "$0/log" 2>&1; echo $? > "$0/ended"' "$state" \
        --cores "$(nproc)" --resources gpu=$((cards * jobs)) --scheduler greedy --retries 1 --quiet progress \
        --config "scale=$scale" "jobs_per_gpu=$jobs" "$@" > /dev/null 2>&1 < /dev/null &
    echo $! > "$state/running"
    echo "$(wc -l < "$state/targets") targets on $cards cards, $jobs jobs each"
}

collect() {
    local scale=$1 file=$2 end=$((SECONDS + ${3:-0})) made told=
    [ -f "$state/targets" ] || usage
    while [ $SECONDS -lt $end ] && [ ! -f "$state/ended" ]; do sleep 1; done
    mkdir -p logs
    touch "$state/now"
    [ -f "$state/collected" ] || touch -d @0 "$state/collected"
    # Not what is being written (names with a dot), nor what is too large or lies where it came from.
    find "results/$scale" logs -newer "$state/collected" -type f ! -path "$state/*" ! -name '.*' ! -path '*/models/*' \
        ! -path '*/data/*' ! -path '*/checkpoints/*' \( ! -name '*.safetensors' -o -path '*/scores/*' \) > "$state/new"
    tar czf "$file" --ignore-failed-read -T "$state/new" || [ $? -eq 1 ] # 1: a log has grown while it was read
    mv "$state/now" "$state/collected"
    made=$( (xargs -a "$state/targets" ls -d 2> /dev/null || true) | wc -l)
    [ ! -f "$state/ended" ] || told="; ended with $(cat "$state/ended")"
    echo "$made of $(wc -l < "$state/targets") targets are made, $(wc -l < "$state/new") files are new$told"
    grep -A 12 '^Error in rule' "$state/log" | grep -E '^(Error| +(log|output):)' | tail -9 || true
    case $told in '' | *' 0') ;; *) tail -n 3 "$state/log" ;; esac
    nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader || true
}

[ -n "${3:-}" ] || usage
state="results/$2/.sweep"
case $1 in
    start) ;;
    collect) set -- "$1" "$2" "$(realpath -m -- "$3")" "${@:4}" ;;
    *) usage ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD/../packages${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
"$@"
