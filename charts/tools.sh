# Sourced by sync and check: locates helm and the Python environment of the checks.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/chainscope"

# The pinned helm if it was built, else the installed one.
find_helm() {
  local built
  built="$(../scripts/kubernetes-tools --bin)/helm"
  if [ -n "${HELM:-}" ]; then echo "$HELM"
  elif [ -x "$built" ]; then echo "$built"
  elif command -v helm; then :
  else
    echo "charts: helm is missing; scripts/kubernetes-tools builds it" >&2
    return 1
  fi
}

# A virtual environment with the packages of requirements.txt, in a directory named after their versions.
find_python() {
  local key folder
  key=$(sha256sum < requirements.txt | cut -c1-16)
  folder="$cache/charts/$key"
  if [ ! -e "$folder/ready" ]; then
    mkdir -p "$cache/charts"
    if ! { rm -rf "$folder" && python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check \
      --requirement requirements.txt; } >&2; then
      echo "charts: cannot create the virtual environment; python3, python3-venv and PyPI are required" >&2
      return 1
    fi
    touch "$folder/ready"
  fi
  echo "$folder/bin/python"
}
