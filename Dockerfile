# The detectors for one GPU, several, Slurm or Kubernetes: bash scripts/docker/build.sh
#
# The devel image has nvcc and NCCL's headers, against which Horovod is built; TensorFlow brings its own CUDA libraries by pip.
FROM nvidia/cuda:12.6.3-cudnn-devel-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential cmake curl git libopenmpi-dev openmpi-bin openssh-client openssh-server python3.12 python3.12-dev \
        python3.12-venv unzip \
    && rm -rf /var/lib/apt/lists/*

# Ubuntu's own first user has the number that MPIJobs run as.
RUN userdel --remove ubuntu \
    && useradd --create-home --uid 1000 effdet \
    && mkdir -p /workspace/effdet-tf2 /workspace/coco /workspace/openimages /workspace/checkpoints /run/sshd \
    && chown -R effdet:effdet /workspace

USER effdet
WORKDIR /workspace/effdet-tf2
ENV PATH=/workspace/effdet-tf2/.venv/bin:$PATH

# What changes seldom comes first: packages and Horovod are not built again when only code has changed. The empty folders
# stand for our packages, which pip links to and does not copy.
COPY --chown=effdet:effdet LICENSE pyproject.toml README.md requirements.lock ./
COPY --chown=effdet:effdet scripts/environment.sh scripts/install_horovod.sh scripts/usage.sh scripts/
RUN mkdir dataset efficientdet model object_detection \
    && touch train.py eval.py infer.py inspector.py export.py quickstart.py serve.py \
    && bash -c 'source scripts/environment.sh && use_environment cuda' \
    && bash scripts/install_horovod.sh
COPY --chown=effdet:effdet . .

# The operator mounts the keys of an MPIJob at ~/.ssh, read-only and not ours: hence no strict modes and no known hosts.
RUN mkdir -p "$HOME/.ssh" "$HOME/.sshd" \
    && ssh-keygen -q -t ed25519 -N "" -f "$HOME/.sshd/host_key" \
    && printf '%s\n' "Port 2222" "HostKey $HOME/.sshd/host_key" "PidFile $HOME/.sshd/pid" "StrictModes no" \
        "AuthorizedKeysFile $HOME/.ssh/authorized_keys" "PasswordAuthentication no" "UsePAM no" > "$HOME/.sshd_config"
USER root
RUN printf '%s\n' "Host *" "    Port 2222" "    StrictHostKeyChecking no" "    UserKnownHostsFile /dev/null" \
        "    LogLevel ERROR" > /etc/ssh/ssh_config.d/mpijob.conf
USER effdet
EXPOSE 2222

# Builds the network without touching a GPU that a training may hold.
HEALTHCHECK --interval=5m --timeout=2m --start-period=1m \
    CMD CUDA_VISIBLE_DEVICES= .venv/bin/python inspector.py --mode=dry --model_name=efficientdet-d0 || exit 1
CMD ["bash"]
