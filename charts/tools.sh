# Sourced by sync and check: where helm is, and the Python of the checks.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/chainscope"

# The pinned one if it was built, else the one of this machine.
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

# A Python with the packages of requirements.txt, in a folder that their versions name.
find_python() {
  local key folder
  key=$(sha256sum < requirements.txt | cut -c1-16)
  folder="$cache/charts/$key"
  if [ ! -e "$folder/ready" ]; then
    mkdir -p "$cache/charts"
    if ! { rm -rf "$folder" && python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check \
      --requirement requirements.txt; } >&2; then
      echo "charts: the checks' Python cannot be made; they need python3, python3-venv and PyPI" >&2
      return 1
    fi
    touch "$folder/ready"
  fi
  echo "$folder/bin/python"
}
