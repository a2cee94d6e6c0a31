#!/usr/bin/env bash
# Makes a fresh Debian 12 machine ready: system packages by apt, a virtual environment in .venv, pinned Python packages.
#   packaging/setup.sh run     what `ate dev` and the demo need
#   packaging/setup.sh test    also what the tests and checks need
# Safe to run again; what is there already is left alone. Needs root only where packages are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}

packages=(python3 python3-venv iproute2 nftables zstd)
[ "$what" = test ] && packages+=(busybox-static docker-registry libpython3.11 binutils)
# The container image and what runs it: containerd and runc, networks of its pods, certificates of a cluster.
[ "$what" = test ] && packages+=(containerd runc containernetworking-plugins openssl)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
need_runsc=
runsc_version=$(dpkg-query -W -f='${Version}' runsc 2>/dev/null || true)
# bookworm's own 2022 build lacks systrap and -net-disconnect-ok: the one from backports is what we want.
dpkg --compare-versions "${runsc_version:-0}" ge 0.0~20240101 || need_runsc=1

if [ ${#missing[@]} -gt 0 ] || [ -n "$need_runsc" ]; then
  if [ "$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null; then sudo=sudo; else
    echo "packages are missing (${missing[*]} ${need_runsc:+runsc}): run this as root" >&2; exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -q >/dev/null
  [ ${#missing[@]} -eq 0 ] || $sudo apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null
  if [ -n "$need_runsc" ]; then
    candidate=$(apt-cache policy runsc | awk '/Candidate:/ {print $2}')
    from=()
    if ! dpkg --compare-versions "${candidate:-0}" ge 0.0~20240101; then
      . /etc/os-release
      from=(-t "$VERSION_CODENAME-backports")
    fi
    if [ ${#from[@]} -gt 0 ] && ! apt-get indextargets --format '$(RELEASE)' | grep -qx "$VERSION_CODENAME-backports"; then
      # The machine's own mirror, whichever form its sources are written in, with the suite replaced.
      mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
        | awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" {print $1; exit}')
      printf 'Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\nSigned-By: %s\n' "$mirror" "$VERSION_CODENAME" \
        /usr/share/keyrings/debian-archive-keyring.gpg | $sudo tee /etc/apt/sources.list.d/ate-backports.sources >/dev/null
      $sudo apt-get update -q >/dev/null
    fi
    $sudo apt-get install -qy --no-install-recommends "${from[@]}" runsc >/dev/null
    dpkg --compare-versions "$(dpkg-query -W -f='${Version}' runsc)" ge 0.0~20240101 \
      || { echo "the runsc of this machine's package sources is too old: install one of 2024 or newer" >&2; exit 1; }
  fi
fi

lock=requirements.lock
[ "$what" = test ] && lock=requirements-dev.lock
stamp=.venv/.ate-$(sha256sum "$lock" | cut -c1-16)
dev_stamp=.venv/.ate-$(sha256sum requirements-dev.lock | cut -c1-16)
if [ ! -e "$stamp" ] && [ ! -e "$dev_stamp" ]; then
  [ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv
  [ -x .venv/bin/uv ] || .venv/bin/python -m pip install -q --disable-pip-version-check uv==0.13.9 \
    || .venv/bin/python -m pip install -q --disable-pip-version-check uv
  UV_HTTP_TIMEOUT=180 .venv/bin/uv pip install -q --python .venv/bin/python -r "$lock"
  touch "$stamp"
fi
