#!/usr/bin/env bash
# The console's tests drive a Chromium, Debian's. Does nothing when there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
needed_by=console
source tests/support/fetching.sh
command -v chromium >/dev/null || install "Chromium" "" chromium
