#!/usr/bin/env bash
# Prints a title as part of an address.
printf '%s\n' "${1// /-}"
