#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec python train.py'
