#!/usr/bin/env bash
# A stand-in for an agent: a fixed answer for each turn. Its first attempts are wrong.
echo "$PGFLOW_STEP" >> turns
write() { printf '%s\n' '#!/usr/bin/env bash' '# Prints a title as part of an address.' "$@" > src/slug.sh; }
case $PGFLOW_STEP in
  plan)
    echo "Lower the letters, and make one dash of several blanks." ;;
  implement)
    write "printf '%s\\n' \"\${1// /-}\" | tr A-Y a-y"
    echo "It lowers the letters." ;;
  repair#1)
    write "printf '%s\\n' \"\${1// /-}\" | tr A-Z a-z"
    echo "It lowers all letters now." ;;
  repair#2)
    write "printf '%s\\n' \"\$1\" | tr A-Z a-z | tr -s ' ' -"
    echo "One dash for several blanks." ;;
  review#*/rework)
    write "# Several blanks are one dash." "printf '%s\\n' \"\$1\" | tr A-Z a-z | tr -s ' ' -"
    echo "It says why now." ;;
esac
