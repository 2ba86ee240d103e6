#!/bin/sh
# Certificates of a cluster's own authority, for mutual TLS between its instances and etcd:
#
#   cluster_certificates.sh FOLDER NAME[,NAME…]…
#
# makes the authority, FOLDER/ca.pem and FOLDER/ca-key.pem, if it is not there, and for each argument
# FOLDER/NAME.pem and FOLDER/NAME-key.pem anew: a certificate of all of its names, which are instances, hosts or
# addresses. Who has ca-key.pem can make members; keep it away from the instances.
set -eu
umask 077

[ $# -ge 1 ] || { echo "usage: $0 FOLDER NAME[,NAME...]..." >&2; exit 2; }
folder=$1
shift
command -v openssl >/dev/null || { echo "$0: openssl is not installed" >&2; exit 1; }
mkdir -p "$folder"

# openssl writes its progress where its errors go: quiet COMMAND… shows them if it fails.
said=$folder/.said.$$
trap 'rm -f "$said"' EXIT
quiet() { "$@" 2>"$said" || { cat "$said" >&2; exit 1; }; }

key() { quiet openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1"; }

if [ -s "$folder/ca.pem" ]; then
  [ $# -eq 0 ] || [ -s "$folder/ca-key.pem" ] || {
    echo "$0: $folder has ca.pem without ca-key.pem, which makes certificates: bring it, or name another folder" >&2
    exit 1
  }
else
  key "$folder/ca-key.pem"
  quiet openssl req -x509 -new -key "$folder/ca-key.pem" -days 3650 -subj "/CN=authority of a Kvasir cluster" \
    -addext keyUsage=critical,keyCertSign,cRLSign -out "$folder/ca.pem"
fi

for names in "$@"; do
  name=${names%%,*}
  alternatives=''
  for each in $(echo "$names" | tr ',' ' '); do
    kind=DNS
    case $each in
      *:*) kind=IP ;;
      *[!0-9.]*) ;;
      *.*.*.*) kind=IP ;;
    esac
    alternatives="$alternatives,$kind:$each"
  done
  # Both take their places at once, so that nobody reads half of one.
  key "$folder/$name-key.pem.new"
  quiet openssl req -new -key "$folder/$name-key.pem.new" -subj "/CN=$name" -out "$folder/$name.request"
  {
    echo "subjectAltName=${alternatives#,}"
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=serverAuth,clientAuth"
    echo "basicConstraints=critical,CA:FALSE"
  } >"$folder/$name.extensions"
  quiet openssl x509 -req -in "$folder/$name.request" -CA "$folder/ca.pem" -CAkey "$folder/ca-key.pem" -days 365 \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$folder/$name.extensions" -out "$folder/$name.pem.new"
  mv "$folder/$name-key.pem.new" "$folder/$name-key.pem"
  mv "$folder/$name.pem.new" "$folder/$name.pem"
  rm "$folder/$name.request" "$folder/$name.extensions"
done
