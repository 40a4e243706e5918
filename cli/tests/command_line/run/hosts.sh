#!/bin/sh
# hosts.sh DIRECTORY: in new namespaces, makes this host `login` and the hosts h1 and h2, each with sshd, on their own network. From
# login, ssh reaches both without a question; `stranger` is h1 by a name whose key nobody knows. Ends with its standard input.
set -eu
at=$1
network=10.98.7
if [ $# = 2 ]; then
  # A host.
  hostname "h$2"
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip addr add "$network.$2/24" dev eth0
  ip link set eth0 up
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  : >"$at/up$2"
  exec /usr/sbin/sshd -D -e -f "$at/sshd_config"
fi
hostname login
ip link set lo up
ip link add br0 type bridge
ip addr add "$network.254/24" dev br0
ip link set br0 up
{
  echo "127.0.0.1 localhost"
  echo "$network.254 login"
  echo "$network.1 h1 stranger"
  echo "$network.2 h2"
  echo "$network.9 down"
} >"$at/hosts"
mount --bind "$at/hosts" /etc/hosts
mkdir -p "$at/ssh" /run/sshd /root/.ssh
chmod 700 "$at" "$at/ssh"
mount --bind "$at/ssh" /root/.ssh
mount -t tmpfs -o mode=755 tmpfs /run/sshd
ssh-keygen -q -t ed25519 -N '' -f "$at/ssh/id_ed25519"
ssh-keygen -q -t ed25519 -N '' -f "$at/host_key"
cp "$at/ssh/id_ed25519.pub" "$at/ssh/authorized_keys"
for name in h1 h2 down; do echo "$name $(cat "$at/host_key.pub")"; done >"$at/ssh/known_hosts"
printf 'Host nobody\n  HostName h1\n  HostKeyAlias h1\n  IdentityFile /dev/null\n  IdentitiesOnly yes\n' >"$at/ssh/config"
printf 'HostKey %s\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\n' "$at/host_key" >"$at/sshd_config"
for i in 1 2; do
  unshare -m -n -u -i --propagation private sh "$0" "$at" "$i" >"$at/log$i" 2>&1 &
  until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
  ip link add "v$i" type veth peer name eth0 netns $!
  ip link set "v$i" master br0 up
  echo $! >"$at/pid$i"
done
for i in 1 2; do
  until [ -e "$at/up$i" ] && ssh "h$i" true 2>>"$at/log"; do sleep 0.05; done
done
echo ready
exec cat
