#!/usr/bin/env bash
# A sweep in the background on a machine that has no network, in the folder that tools/offline.py packed; see docs/offline.md.
#   tools/sweep.sh start SCALE JOBS [OPTIONS] -- TARGETS...  JOBS at a time on each card, which several share by NVIDIA's MPS
#   tools/sweep.sh collect SCALE FILE [SECONDS]              wait so long or until the end; archive what is new since the last
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/../packages${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
state="results/${2:-}/.sweep"

start() {
    local scale=$1 jobs=$2 cards
    shift 2
    cards=$(nvidia-smi -L | wc -l)
    mkdir -p "$state"
    rm -f "$state/ended"
    if [ "$jobs" -gt 1 ]; then
        export CUDA_MPS_PIPE_DIRECTORY="$PWD/$state/mps" CUDA_MPS_LOG_DIRECTORY="$PWD/$state/mps"
        mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
        nvidia-cuda-mps-control -d || true # one that runs already serves as well
    fi
    local targets=("$@")
    while [ ${#targets[@]} -gt 0 ] && [ "${targets[0]}" != -- ]; do targets=("${targets[@]:1}"); done
    printf '%s\n' "${targets[@]:1}" > "$state/targets"
    setsid nohup bash -c 'python3 -m snakemake "$@" > "$0/log" 2>&1; echo $? > "$0/ended"' "$state" \
        --cores "$(nproc)" --resources gpu=$((cards * jobs)) --scheduler greedy --retries 1 --quiet progress \
        --config "scale=$scale" "jobs_per_gpu=$jobs" "$@" > /dev/null 2>&1 < /dev/null &
    echo "$(wc -l < "$state/targets") targets on $cards cards, $jobs jobs each"
}

collect() {
    local scale=$1 file=$2 end=$((SECONDS + ${3:-0}))
    while [ $SECONDS -lt $end ] && [ ! -f "$state/ended" ]; do sleep 1; done
    mkdir -p logs
    touch "$state/now"
    [ -f "$state/collected" ] || touch -d @0 "$state/collected"
    find "results/$scale" logs -newer "$state/collected" -type f ! -path "$state/*" ! -path '*/models/*' ! -path '*/data/*' \
        ! -path '*/checkpoints/*' \( ! -name '*.safetensors' -o -path '*/scores/*' \) > "$state/new"
    tar czf "$file" -T "$state/new" || [ $? -eq 1 ] # 1: a log has grown while it was read
    mv "$state/now" "$state/collected"
    local made
    made=$( (xargs -a "$state/targets" ls -d 2> /dev/null || true) | wc -l)
    echo "$made of $(wc -l < "$state/targets") targets are made, $(wc -l < "$state/new") files are new$([ ! -f "$state/ended" ] || echo "; ended with $(cat "$state/ended")")"
    grep -A 12 '^Error in rule' "$state/log" | grep -E '^(Error| +(log|output):)' | tail -9 || true
    nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader || true
}

case "${1:-}:${2:-}:${3:-}:" in
    start:?*:?*:) shift; start "$@" ;;
    collect:?*:?*:) shift; collect "$@" ;;
    *) sed -n '3,4s/^# *//p' "$0" >&2; exit 2 ;;
esac
