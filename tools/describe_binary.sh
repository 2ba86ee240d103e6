#!/bin/sh
# describe_binary.sh KVASIR SHARE: writes below SHARE (/usr/share) what the binary says of itself, its manual page and the
# completions of shells, and the licences of what it is compiled with.
set -eu
umask 022 # whatever the builder has: others read these files
kvasir=$1 share=$2
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
"$kvasir" man | gzip -9n >"$share/man/man1/kvasir.1.gz"
"$kvasir" completion bash >"$share/bash-completion/completions/kvasir"
"$kvasir" completion zsh >"$share/zsh/vendor-completions/_kvasir"
"$kvasir" completion fish >"$share/fish/vendor_completions.d/kvasir.fish"
"$(dirname "$0")/bundled_licenses.sh" "$share/doc/kvasir/licenses"
