# Tidemark as a static binary in an image that holds nothing else: no shell, no
# package manager, no root.
#
#   docker build --build-arg VERSION=$(git describe --tags --always) --build-arg COMMIT=$(git rev-parse HEAD) -t tidemark .
#   docker run -p 7942:7942 -v tidemark:/var/lib/tidemark -e TIDEMARK_ADMIN_PASSWORD=... tidemark

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
# Modules first: they change less often than the code, so this layer is kept.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=devel
ARG COMMIT=
ARG TARGETOS
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" -o /out/tidemark ./cmd/tidemark
# The data directory exists with the right owner before a volume is put over it.
RUN mkdir -p /out/data && chmod 0700 /out/data

FROM scratch
LABEL org.opencontainers.image.title="Tidemark" \
      org.opencontainers.image.description="Message broker whose history lives in an object store" \
      org.opencontainers.image.licenses="Apache-2.0"
# Object stores are reached over TLS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/tidemark /tidemark
COPY --from=build --chown=65532:65532 /out/data /var/lib/tidemark
USER 65532:65532
VOLUME /var/lib/tidemark
EXPOSE 7942
# Liveness only: a node that is degraded but alive must not be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["/tidemark", "healthcheck"]
ENTRYPOINT ["/tidemark"]
CMD ["serve", "--data-dir", "/var/lib/tidemark", "--http-addr", "0.0.0.0:7942"]
