# Make the virtual environment and install the project into it; sourced by demo.sh, test.sh and test_mindformers.sh.
# VENV chooses the folder, default .venv beside this project; EXTRAS what is installed besides, default test.

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$project"
VENV=${VENV:-$project/.venv}
EXTRAS=${EXTRAS:-test}
PYTHON=${PYTHON:-python3}

if ! "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))'; then
    echo "MindSpore needs Python 3.10 or 3.11, got: $("$PYTHON" --version 2>&1). Set PYTHON to one of them." >&2
    exit 1
fi
if ! "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "Python cannot make virtual environments. On Debian: apt-get install python3-venv" >&2
    exit 1
fi

# Installed from these very files? Otherwise install, also over a half-finished attempt.
wanted=$(cat setup.py pyproject.toml <(echo "$EXTRAS") | sha256sum)
if [ "$(cat "$VENV/.hyperparallel-installed" 2>/dev/null)" != "$wanted" ]; then
    echo "installing into $VENV (MindSpore is large: a minute or two)"
    "$PYTHON" -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check --editable ".[$EXTRAS]"
    echo "$wanted" >"$VENV/.hyperparallel-installed"
fi
export PATH="$VENV/bin:$PATH"
