#!/usr/bin/env bash
# What this worker does for a task: it runs the task's own script, with its work folder as $WORK and its artifact folder as
# $ARTIFACTS.
#
#   run-task.sh WORK ARTIFACTS PYTHON
set -euo pipefail
WORK=$1 ARTIFACTS=$2
export WORK ARTIFACTS
script=$("$3" -c 'import json, sys; print(json.load(open(sys.argv[1]))["payload"]["script"])' "$WORK/task.json")
exec bash -c "$script"
