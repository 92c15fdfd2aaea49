# An image that trains on NVIDIA GPUs. torch brings CUDA's libraries, so the machine needs only NVIDIA's driver and its
# container toolkit.
#
#   docker build -t longspan .
#   docker run --rm --gpus all --ipc=host --volume "$PWD:/work" longspan train my-sft.yaml
FROM python:3.12-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# Debian keeps only the newest version of a package, so versions are those of the image's release.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential ca-certificates curl pkg-config \
    libavformat-dev libavcodec-dev libavutil-dev libswscale-dev && rm -rf /var/lib/apt/lists/*
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
ENV PATH=/root/.cargo/bin:$PATH
WORKDIR /source
COPY . .
RUN make wheel

FROM python:3.12-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libavformat59 libavcodec59 libavutil57 libswscale6 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl
WORKDIR /work
ENTRYPOINT ["longspan"]
CMD ["help"]
