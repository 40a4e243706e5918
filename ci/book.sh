#!/usr/bin/env bash
# Builds the papers as a book and prints its first page. docs/SUMMARY.md names the chapters; the decisions follow, as their index lists them.
#
# The book is built from a copy of the papers and of what they link to, in which paths are those of the repository: so links among them
# lead to chapters, and on a forge to files. mdBook is installed first, once for each version, without optimization, which it does not need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=0.5.4
target=$(ci/target.sh)
tool=$target/mdbook-$version book=$target/book
if [ ! -x "$tool/bin/mdbook" ]; then
  CARGO_PROFILE_DEV_DEBUG=false cargo install mdbook --version "$version" --locked --no-default-features --debug \
    --root "$tool" --target-dir "$tool/build" || {
    echo "book: mdbook $version cannot be installed, see above; without it the book is not checked" >&2
    exit 1
  }
  rm -rf "$tool/build"
fi
rm -rf "$book"
mkdir -p "$book/src"
cp book.toml "$book"
cp -r --parents ./*.md LICENSE-* docs deploy examples files/examples "$book/src"
{
  sed 's|](\.\./|](|; t; s|](|](docs/|' docs/SUMMARY.md
  sed -n 's|^- \[\(.*\)\](\(.*\)) \(.*\)|  - [\1. \3](docs/decisions/\2)|p' docs/decisions/README.md
} >"$book/src/SUMMARY.md"
said=$("$tool/bin/mdbook" build "$book" 2>&1) && ! grep -E '^ *(WARN|ERROR)' <<<"$said" || {
  echo "$said" >&2
  exit 1
}
echo "book: $book/html/index.html"
