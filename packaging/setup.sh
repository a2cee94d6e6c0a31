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
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
need_runsc=
runsc_version=$(dpkg-query -W -f='${Version}' runsc 2>/dev/null || true)
# bookworm's own 2022 build lacks systrap and -net-disconnect-ok: the one from backports is what we want.
dpkg --compare-versions "${runsc_version:-0}" ge 0.0~2024 || need_runsc=1

if [ ${#missing[@]} -gt 0 ] || [ -n "$need_runsc" ]; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  if [ -n "$need_runsc" ] && ! grep -rqs 'bookworm-backports' /etc/apt/sources.list /etc/apt/sources.list.d; then
    # The machine's own Debian entry with the suite replaced, so that its own mirror is used.
    awk 'BEGIN{RS="";ORS="\n\n"} /Suites:/ && !/security/ {print; exit}' /etc/apt/sources.list.d/debian.sources \
      | sed '/^#/d; s/^Suites: .*/Suites: bookworm-backports/' | $sudo tee /etc/apt/sources.list.d/ate-backports.sources >/dev/null
  fi
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -q >/dev/null
  [ ${#missing[@]} -eq 0 ] || $sudo apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null
  if [ -n "$need_runsc" ]; then
    $sudo apt-get install -qy --no-install-recommends runsc/bookworm-backports >/dev/null \
      || $sudo apt-get install -qy --no-install-recommends runsc >/dev/null
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
