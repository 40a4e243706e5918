#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export OMP_NUM_THREADS=8
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" train.py
