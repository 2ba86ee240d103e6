#!/bin/bash
# Runs as a unit of a system that systemd has booted, and prints what becomes of the service: "NAME: what was seen".
# package_test.py starts it, and knows what is right.
state() {
  echo "$1: $(systemctl show kvasir -P ActiveState) after $(systemctl show kvasir -P NRestarts) restarts"
}
pid() { systemctl show kvasir -P MainPID; }
ask() {
  body='{"prompt":"A raven is","max_tokens":16,"temperature":0}'
  exec 9<>/dev/tcp/127.0.0.1/8000
  printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' ${#body} "$body" >&9
  echo "$1: $(grep -o '"text":"[^"]*"' <&9)"
  exec 9>&-
}
# Until another process serves than this one.
another() {
  for _ in $(seq 300); do
    [ "$(pid)" = "$1" ] || [ "$(systemctl show kvasir -P ActiveState)" != active ] || return
    sleep 0.1
  done
}

dpkg -i /mnt/kvasir.deb
state installed
systemctl start kvasir
state started
ask answer
grep -E '^(NoNewPrivs|Seccomp|CapEff):' "/proc/$(pid)/status"
systemctl reload kvasir
state reloaded

first=$(pid)
dpkg -i /mnt/newer.deb
state upgraded
[ "$(pid)" = "$first" ] || echo 'process: another'

first=$(pid)
kill -SEGV "$first"
another "$first"
state crashed

mkdir -p /run/systemd/system/kvasir.service.d
printf '[Service]\nWatchdogSec=5\n' >/run/systemd/system/kvasir.service.d/short.conf
systemctl daemon-reload
systemctl restart kvasir
sleep 12
state watched
first=$(pid)
kill -STOP "$first"
another "$first"
state frozen

systemctl stop kvasir
systemctl start kvasir.socket
state waiting
ask first
systemctl restart kvasir &
sleep 0.2
ask meanwhile
wait
echo "complaints: $(journalctl -u kvasir -o cat | grep -c ERROR)"

# An upgrade beside a configuration that the server refuses.
cp /etc/kvasir/kvasir.yaml /mnt/right.yaml
echo 'no-such-flag: 1' >>/etc/kvasir/kvasir.yaml
dpkg -i /mnt/newer.deb
echo "mistaken: $(dpkg-query -W -f '${Status}' kvasir)"
cat /mnt/right.yaml >/etc/kvasir/kvasir.yaml
systemctl restart kvasir
state mended

systemctl enable kvasir kvasir.socket
dpkg --purge kvasir
state purged
