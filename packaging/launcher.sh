#!/bin/sh
# ate: this script carries the program behind its last line, unpacks it once into a cache, and starts it from there.
# Needs tar and zstd on the machine, once. ATE_CACHE names another cache folder.
set -eu
hash=@HASH@
if [ -n "${ATE_CACHE:-}" ]; then cache=$ATE_CACHE
elif [ -n "${XDG_CACHE_HOME:-}" ]; then cache=$XDG_CACHE_HOME/ate
elif [ -w /var/cache ]; then cache=/var/cache/ate
else cache=${HOME:?set ATE_CACHE or HOME}/.cache/ate; fi
program=$cache/$hash/ate
if [ ! -x "$program" ]; then
  mkdir -p "$cache"
  [ -O "$cache" ] || { echo "ate: $cache belongs to another user: set ATE_CACHE" >&2; exit 1; }
  chmod go-w "$cache"
  fresh=$(mktemp -d "$cache/.unpack-XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  if ! tail -n +@LINES@ "$0" | zstd -dq | tar -xf - -C "$fresh" --strip-components=1; then
    echo "ate: cannot unpack into $cache: is zstd installed, is there room, is this file whole?" >&2
    exit 1
  fi
  mv -T "$fresh" "$cache/$hash" 2>/dev/null || [ -x "$program" ]
  trap - EXIT
  rm -rf "$fresh"
fi
case $0 in /*) ATE_BINARY=$0 ;; */*) ATE_BINARY=$PWD/$0 ;; *) ATE_BINARY=$(command -v "$0") ;; esac
export ATE_BINARY
exec "$program" "$@"
