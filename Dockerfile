# Image for one GPU, several GPUs, Slurm or Kubernetes: bash scripts/docker/build.sh
#
# Two stages. `build` has nvcc, compilers and headers and makes .venv; the image takes .venv from it. TensorFlow's CUDA
# libraries come from pip, and Horovod is built against the NCCL among them, so the image has each library once.
#
# NVIDIA driver on the host: 525.60.13 or later (CUDA 12), checked by the container runtime because of NVIDIA_REQUIRE_CUDA below.
# Estimated size: 9.0 GB, 4.3 GB to pull (estimated as described in docs/guides/clusters.md).
#
# The digests are those of the multi-platform index of each tag. To update one: docker buildx imagetools inspect ubuntu:24.04
# Other bases: BASE= and BUILD_BASE= of scripts/docker/build.sh. Both must be Ubuntu 24.04: .venv uses its Python and OpenMPI.
ARG BUILD_BASE=nvidia/cuda:12.9.1-devel-ubuntu24.04@sha256:020bc241a628776338f4d4053fed4c38f6f7f3d7eb5919fecb8de313bb8ba47c
ARG BASE=ubuntu:24.04@sha256:008173c23f95b170204355c12626cb5a965d779a7e1283b09e9cffbb1bf33ca3

FROM ${BUILD_BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential ca-certificates libopenmpi-dev openmpi-bin python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /workspace/effdet-tf2

# Packages and Horovod come before the code, so that a change of the code does not rebuild them. The empty packages are
# placeholders for ours, which pip links to and does not copy.
COPY LICENSE pyproject.toml README.md requirements.lock ./
COPY scripts/environment.sh scripts/install_horovod.sh scripts/usage.sh scripts/wheel_layout.py scripts/
RUN mkdir dataset efficientdet model object_detection program_support \
    && touch dataset/__init__.py efficientdet/__init__.py model/__init__.py object_detection/__init__.py program_support/__init__.py \
        train.py eval.py compare.py infer.py inspector.py export.py quickstart.py serve.py doctor.py next_images.py monitor.py \
    && bash -c 'source scripts/environment.sh && use_environment cuda,jax-cuda,mlperf,ray-jobs' \
    && bash scripts/install_horovod.sh

# wget: for the probes of earlier versions of KubeRay
FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates curl openmpi-bin openssh-client openssh-server python3.12 unzip wget \
    && rm -rf /var/lib/apt/lists/*

# Ubuntu's first user has the user id that MPIJobs run as. The operator mounts the keys of an MPIJob at ~/.ssh, read-only and
# with other owners, so strict modes and known hosts are off.
RUN userdel --remove ubuntu \
    && useradd --create-home --uid 1000 effdet \
    && mkdir -p /workspace/effdet-tf2 /workspace/coco /workspace/openimages /workspace/checkpoints /run/sshd \
    && chown -R effdet:effdet /workspace \
    && printf '%s\n' "Host *" "    Port 2222" "    StrictHostKeyChecking no" "    UserKnownHostsFile /dev/null" \
        "    LogLevel ERROR" > /etc/ssh/ssh_config.d/mpijob.conf

# The container runtime mounts the driver's libraries, on some clusters below /usr/local/nvidia.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=12.0" \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PATH=/workspace/effdet-tf2/.venv/bin:/usr/local/nvidia/bin:$PATH

# A numeric user, so that Kubernetes can verify that it is not root. Jobs refer to sshd's configuration in this home folder.
USER 1000
ENV HOME=/home/effdet
WORKDIR /workspace/effdet-tf2
RUN mkdir -p "$HOME/.ssh" "$HOME/.sshd" \
    && ssh-keygen -q -t ed25519 -N "" -f "$HOME/.sshd/host_key" \
    && printf '%s\n' "Port 2222" "HostKey $HOME/.sshd/host_key" "PidFile $HOME/.sshd/pid" "StrictModes no" \
        "AuthorizedKeysFile $HOME/.ssh/authorized_keys" "PasswordAuthentication no" "UsePAM no" > "$HOME/.sshd_config"
COPY --from=build --chown=1000:1000 /workspace/effdet-tf2/.venv .venv
COPY --chown=1000:1000 . .
EXPOSE 2222
CMD ["bash"]
