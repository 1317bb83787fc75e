# The three services and the gateway before them from one build. Nothing of BuildKit is needed:
#
#     docker build --target coordinator --tag specsplit-coordinator .
#     docker build --target verifier --tag specsplit-verifier .
#     docker build --target drafter --tag specsplit-drafter --build-arg VARIANT=gpu .
#     docker build --target gateway --tag specsplit-gateway .
#
# With --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" `specsplit --version`, `status` and the page name the commit: an image has no .git.
#
# Models are not in the images; mount them. docker-compose.yml puts it all together.

ARG PYTHON=3.11

# -- what every image stands on: a user without rights, a venv on the path, and folders for tokens that new volumes take their owner from
FROM python:${PYTHON}-slim-bookworm AS base
ENV PATH=/opt/specsplit/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin specsplit \
    && install --directory --owner=10001 --group=10001 --mode=0700 /secrets/clients /secrets/members /secrets/operators \
    && python -m venv --without-pip /opt/specsplit
WORKDIR /srv

# -- pyproject.toml's requirements, a file for each extra: packages are installed again only if these change
FROM base AS requirements
COPY pyproject.toml .
RUN python -c 'import tomllib; \
project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
wanted = {"base": project["dependencies"], **project["optional-dependencies"]}; \
[open(f"{name}.txt", "w").write("\n".join(lines) + "\n") for name, lines in wanted.items()]'

# -- specsplit itself, without what it requires
FROM base AS package
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY specsplit specsplit
COPY coordinator coordinator
COPY verifier verifier
COPY drafter drafter
RUN PIP_CONSTRAINT=constraints.txt pip --python /opt/specsplit/bin/python install --no-deps .

# -- the packages of a coordinator: no torch
FROM base AS rails
COPY --from=requirements /srv/base.txt /srv/otel.txt /srv/quota.txt ./
COPY constraints.txt ./
RUN pip --python /opt/specsplit/bin/python install -c constraints.txt -r base.txt -r otel.txt -r quota.txt

FROM rails AS coordinator
COPY --from=package /opt/specsplit /opt/specsplit
ARG COMMIT=
ENV SPECSPLIT_COMMIT=$COMMIT
ENV SPECSPLIT_COORDINATOR_LISTEN=[::]:50050
EXPOSE 50050
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["specsplit", "health", "127.0.0.1:50050"]
ENTRYPOINT ["specsplit", "serve", "coordinator"]

# -- the OpenAI API over HTTP (docs/api.md): a program of others, with nothing of specsplit's in it
FROM base AS gateway
ARG SMG=1.13.0
COPY constraints.txt ./
RUN pip --python /opt/specsplit/bin/python install -c constraints.txt "smg==$SMG"
ENV SPECSPLIT_GATEWAY_WORKERS=grpc://127.0.0.1:50050
EXPOSE 8000 9464
USER 10001:10001
# Ready is not healthy: it answers that it has no verifier, too.
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/liveness', timeout=5)"]
# Variables: SPECSPLIT_GATEWAY_WORKERS, one address or several with spaces between, and SPECSPLIT_GATEWAY_API_KEY, that callers have to show.
# Other options of `smg launch` are the command of the container.
ENTRYPOINT ["/bin/sh", "-c", "exec smg launch --worker-urls $SPECSPLIT_GATEWAY_WORKERS --host :: --port 8000 --prometheus-host :: --prometheus-port 9464 --shutdown-grace-period-secs 30 --log-json ${SPECSPLIT_GATEWAY_API_KEY:+--api-key=\"$SPECSPLIT_GATEWAY_API_KEY\"} \"$@\"", "gateway"]

# -- and those of a service that runs a model
FROM rails AS engine
# cpu or gpu. PyPI's torch for Linux carries CUDA; builds without it are on an index of their own.
ARG VARIANT=cpu
# With it FlashInfer's kernels, compiled for the CUDA that torch brings: there is no compiler of CUDA in these images.
ARG FLASHINFER_KERNELS=https://flashinfer.ai/whl/cu130
# gcc, about 180 MiB, compiles the kernels in C for the processor that a service runs on, and the launchers of triton's. Both are kept here.
ENV TRITON_CACHE_DIR=/tmp/triton
ENV XDG_CACHE_HOME=/tmp/cache
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN case "$VARIANT" in \
        cpu) index="--extra-index-url https://download.pytorch.org/whl/cpu" ;; \
        gpu) index="" ;; \
        *) echo "VARIANT is '$VARIANT', expected cpu or gpu" >&2; exit 1 ;; \
    esac \
    && pip --python /opt/specsplit/bin/python install --no-compile --no-deps $index -c constraints.txt torch
COPY --from=requirements /srv/engine.txt /srv/gpu.txt ./
# Compiled at the end, on all cores; torch carries files for newer Pythons, which do not compile on this one.
RUN pip --python /opt/specsplit/bin/python install --no-compile -c constraints.txt -r engine.txt \
    && { [ "$VARIANT" = cpu ] || { \
        pip --python /opt/specsplit/bin/python install --no-compile -c constraints.txt -r gpu.txt \
        && pip --python /opt/specsplit/bin/python install --no-compile --no-deps --index-url "$FLASHINFER_KERNELS" \
            "flashinfer-jit-cache==$(sed -n 's/^flashinfer-python==//p' constraints.txt)"; }; } \
    && { python -m compileall -q -j 0 /opt/specsplit/lib >/dev/null || true; }

# A member says where the others reach it: unless told, at the name that its container has in the network.
FROM engine AS verifier
COPY --from=package /opt/specsplit /opt/specsplit
ARG COMMIT=
ENV SPECSPLIT_COMMIT=$COMMIT
ENV SPECSPLIT_VERIFIER_LISTEN=[::]:50051
EXPOSE 50051
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s --retries=3 CMD ["specsplit", "health", "127.0.0.1:50051"]
ENTRYPOINT ["/bin/sh", "-c", "export SPECSPLIT_VERIFIER_ADVERTISE=${SPECSPLIT_VERIFIER_ADVERTISE:-$(hostname):50051}; exec specsplit serve verifier \"$@\"", "verifier"]

FROM engine AS drafter
COPY --from=package /opt/specsplit /opt/specsplit
ARG COMMIT=
ENV SPECSPLIT_COMMIT=$COMMIT
ENV SPECSPLIT_DRAFTER_LISTEN=[::]:50052
EXPOSE 50052
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s --retries=3 CMD ["specsplit", "health", "127.0.0.1:50052"]
ENTRYPOINT ["/bin/sh", "-c", "export SPECSPLIT_DRAFTER_ADVERTISE=${SPECSPLIT_DRAFTER_ADVERTISE:-$(hostname):50052}; exec specsplit serve drafter \"$@\"", "drafter"]
