#!/bin/sh
# bundled_licenses.sh FOLDER [LIBRARY…]: writes into FOLDER the licences of Kvasir, of what it is compiled with, and of these
# shared libraries, as Debian's packages have them; and the texts that those name without having them.
set -eu
umask 022 # whatever the builder has: others read these files
folder=$1
shift
cd "$(dirname "$0")/.."
mkdir -p "$folder"
cp LICENSE "$folder/kvasir"

xgrammar=$(/usr/bin/python3 tools/fetch_xgrammar.py)
cat "$xgrammar/LICENSE" "$xgrammar/NOTICE" >"$folder/xgrammar"
sed '/\*\//q' "$xgrammar/3rdparty/picojson/picojson.h" >"$folder/picojson"

packages='libboost1.81-dev libcli11-dev nlohmann-json3-dev libjs-highlight.js libjs-markdown-it'
for library in "$@"; do
  name=$(basename "$(realpath "$library")")
  package=$(dpkg-query -S "*/$name" | sed -n '1s/[:,].*//p')
  packages="$packages $package"
done
for package in $packages; do
  cp "/usr/share/doc/$package/copyright" "$folder/$package"
done
grep -rhoE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$folder" | sort -u | while read -r text; do
  [ ! -f "$text" ] || cp "$text" "$folder/text-$(basename "$text")"
done
