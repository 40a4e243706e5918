#!/usr/bin/env bash
# Unpacks the original source of a package of this distribution, as its own lists of sources have it.
#
#   ci/source.sh PACKAGE DIRECTORY [SUITE]      SUITE is another release, such as trixie
set -euo pipefail
command -v apt-get >/dev/null || { echo "source: there is no apt-get here, by which the source of $1 is found" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/source" "$2"
# The distribution's own lists of packages, of sources this time.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
  # A list of old style is no part unless its name ends so.
  name=$(basename "$list")
  [ ! -e "$list" ] || sed 's/^Types: .*/Types: deb-src/; s/^deb /deb-src /' "$list" >"$work/parts/${name/#sources.list/all.list}"
done
if [ -n "${3:-}" ]; then
  # Updates for security have their own names, and are not needed.
  for list in "$work"/parts/*; do
    case $list in
      *.sources) awk -v RS= -v ORS='\n\n' '!/-security/' "$list" | sed "s/^Suites: .*/Suites: $3/" >"$work/one" ;;
      *) sed -E "/-security/d; s/^(deb-src( \[[^]]*\])? [^ ]+) [^ ]+/\1 $3/" "$list" | sort -u >"$work/one" ;;
    esac
    mv "$work/one" "$list"
  done
fi
sources=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::Lists="$work/lists"
  -o APT::Sandbox::User="$(id -un)")
apt-get "${sources[@]}" update
# A mirror may lack the newest description and patches of a package; the original source is another file.
(cd "$work/source" && apt-get "${sources[@]}" source --download-only "$1") ||
  ls "$work/source/$1"_*.orig.tar.* >/dev/null 2>&1 || exit 1
tar -xf "$work/source/$1"_*.orig.tar.* -C "$2" --strip-components=1
