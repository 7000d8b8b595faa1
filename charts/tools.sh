# Sourced by sync and check: locates helm and the Python environment of the checks.
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

# Python with the packages of requirements.txt.
find_python() { ../scripts/python-env requirements.txt; }
