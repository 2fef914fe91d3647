#!/usr/bin/env bash
# The tests that step a process's clock compile a few lines of C (tests/support/wallclock.c).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
needed_by="wall clock"
source tests/support/fetching.sh
command -v cc >/dev/null || command -v gcc >/dev/null || install "a C compiler" "" build-essential
