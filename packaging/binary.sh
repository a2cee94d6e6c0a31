#!/usr/bin/env bash
# Builds dist/ate: PyInstaller's folder as a zstd tar behind a small launcher, unpacked once by content.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/binary
echo "building dist/ate: about two minutes"
.venv/bin/pyinstaller --noconfirm --clean --log-level=WARN --distpath "$work/dist" --workpath "$work/work" ate.spec
tar -C "$work/dist" --sort=name --mtime=@0 --owner=0 --group=0 -cf - ate | zstd -q -19 -T0 >"$work/payload"
hash=$(sha256sum "$work/payload" | cut -c1-16)
lines=$(($(wc -l <packaging/launcher.sh) + 1))
mkdir -p dist
sed -e "s/@HASH@/$hash/" -e "s/@LINES@/$lines/" packaging/launcher.sh | cat - "$work/payload" >dist/ate.new
chmod +x dist/ate.new
mv dist/ate.new dist/ate
dist/ate --version
ls -l dist/ate
