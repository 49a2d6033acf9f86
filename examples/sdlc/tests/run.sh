#!/usr/bin/env bash
# The tests of slug.sh: titles, and their slugs.
set -u
failed=0
while IFS='|' read -r title slug; do
  said=$(bash src/slug.sh "$title")
  [ "$said" = "$slug" ] || { echo "'$title' is '$said', not '$slug'"; failed=1; }
done <<'CASES'
Hello World|hello-world
Two  Spaces|two-spaces
plain|plain
CASES
exit "$failed"
