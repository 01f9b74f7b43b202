#!/usr/bin/env bash
# Starts a Ray cluster on the nodes of a Slurm job, and runs a tangentlens command on it:
#   sbatch slurm.sh sweep EleutherAI/pythia-1.4b --revisions all --gpus 1 --out /shared/runs/pythia
# The folder of --out, the text and the hub's cache (HF_HOME) must be on storage that all nodes see. If the job ends early,
# submit it again: it measures what is missing.
#SBATCH --job-name=tangentlens
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=08:00:00
set -euo pipefail

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
port=${RAY_PORT:-6379}
host=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')
address="$host:$port"
# Ray would otherwise count all cores of a node, and not those of the job.
cores=${SLURM_CPUS_PER_TASK:-$(nproc)}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address="$host" --port="$port" --num-cpus="$cores" --block &
until ray status --address "$address" >/dev/null 2>&1; do sleep 2; done
for node in "${nodes[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \
        ray start --address="$address" --num-cpus="$cores" --block &
done

tangentlens "$@" --ray "$address"
