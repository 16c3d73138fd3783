#!/bin/sh
# Make or renew the environment: tools/setup.sh FOLDER [dev]. Says what is missing before it downloads anything.
set -eu
venv=$1
extra=${2:-}
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "catchment needs Python 3.11 or later; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
    echo "Install one and name it: make PYTHON=python3.12 demo" >&2
    exit 1
fi

java=java
if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
major=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
if [ -z "$major" ] || [ "$major" -lt 17 ]; then
    echo "catchment runs on Spark, which needs Java 17 or later; found: ${major:-none} ($java)." >&2
    echo "Install it: Debian/Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless;" >&2
    echo "macOS: brew install openjdk@17. If it is not the default one, set JAVA_HOME." >&2
    exit 1
fi

if [ ! -x "$venv/bin/python" ]; then
    echo "[1/2] making an environment in $venv"
    "$python" -m venv "$venv"
fi
echo "[2/2] installing catchment${extra:+ with its tools for $extra} (Spark is large: a few minutes the first time)"
"$venv/bin/python" -m pip install --disable-pip-version-check --editable ".[${extra:-all}]"
