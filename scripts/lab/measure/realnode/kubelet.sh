#!/bin/sh
# Build kubelet in a Debian root: a customize hook of mmdebstrap, with the root's folder as $1.
#
# Debian bookworm's source package is the last one that has cmd/kubelet (1.20.2) and its vendored modules. Its copy of
# reflect2 (1.0.1) fails with Go 1.18 or later, so Debian's packaged copy replaces it.
set -eu
mkdir -p "$1/build"
cd "$1/build"
# apt runs outside of the root, where the mirror's certificates and proxies are; mmdebstrap's configuration points it inside.
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q source --download-only kubernetes
chroot "$1" sh -eu <<'IN'
cd /build
mkdir -p src/k8s.io
dpkg-source --no-check -x kubernetes_1.20*.dsc src/k8s.io/kubernetes
cd src/k8s.io/kubernetes
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/reflect2
export HOME=/root GOPATH=/build GO111MODULE=off GOFLAGS= CGO_ENABLED=0 GOTOOLCHAIN=local
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
go build -p 2 -o /build/kubelet \
    -ldflags "-s -w -checklinkname=0 -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
    ./cmd/kubelet
/build/kubelet --version
IN
