#!/bin/sh
# make_rootfs.sh BUILD ROOT: makes in ROOT all files of a container: the binary of this build folder, the libraries that it
# needs, root certificates, the licences, and a user without a login. There is no shell.
set -eu
umask 022 # whatever the builder has: others read these files
build=$1 root=$2
mkdir -p "$root/etc" "$root/proc" "$root/usr/lib" "$root/usr/lib64" "$root/var/lib/kvasir"
root=$(realpath "$root")
ln -sfn usr/lib "$root/lib"
ln -sfn usr/lib64 "$root/lib64"
DESTDIR=$root cmake --install "$build" --prefix /usr --component program --strip >&2

libraries=$(ldd "$root/usr/bin/kvasir" | sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p')
for library in $libraries; do
  install -D -m 755 "$(realpath "$library")" "$root$library"
done
# Where OpenSSL looks for them: traces may go over HTTPS.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$root/usr/lib/ssl"
ln -sfn /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"

licenses=$root/usr/share/doc/kvasir/licenses
install -D -m 644 /usr/share/doc/ca-certificates/copyright "$licenses/ca-certificates"
# shellcheck disable=SC2086  # one word per library
"$(dirname "$0")/bundled_licenses.sh" "$licenses" $libraries

echo 'kvasir:x:65532:65532::/var/lib/kvasir:/sbin/nologin' >"$root/etc/passwd"
echo 'kvasir:x:65532:' >"$root/etc/group"
