# Builds the compiled wheel (docs/decisions/0012-compiled.md), then installs nothing else: no compiler, no sources and no root in
# what runs.
#     docker build --build-arg COMMIT="$(git rev-parse HEAD)" --tag oncegate:0.1.0 .
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && python -m venv /opt/oncegate
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY app app
COPY middleware middleware
COPY cache cache
COPY scripts scripts
# What `oncegate --version` says: git's folder is not here to be asked.
ARG COMMIT=unknown
RUN ONCEGATE_COMPILED=1 ONCEGATE_COMMIT="$COMMIT" /opt/oncegate/bin/pip install --no-cache-dir .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/oncegate /opt/oncegate
RUN useradd --system --no-create-home --shell /usr/sbin/nologin oncegate
# /var/lib/oncegate is for ONCEGATE_CACHE=sqlite:////var/lib/oncegate/records.db: mount a volume there
RUN install --directory --owner=oncegate --mode=0700 /var/lib/oncegate
USER oncegate
# In a container, loopback would be nobody's. Upstream and cache: ONCEGATE_UPSTREAM, ONCEGATE_CACHE.
ENV PATH=/opt/oncegate/bin:$PATH PYTHONUNBUFFERED=1 ONCEGATE_HOST=0.0.0.0 ONCEGATE_PORT=8080
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/_oncegate/healthz', timeout=2)"]
ENTRYPOINT ["oncegate"]
CMD ["serve"]
