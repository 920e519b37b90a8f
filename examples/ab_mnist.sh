#!/usr/bin/env bash
# Does powersgd pay on this machine, and does it cost accuracy? Three arms (none and fp16 are added), six seeds: about 3 minutes on 2 cores.
# Half a point of accuracy is what we would give away. {seed} becomes the number of the seed; further arguments are options of hvdlite ab:
# --link 1gbit asks the same of two hosts joined by such a link (root). MODEL=mlp trains a model of 23 MB instead.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m hvdlite ab --arms powersgd:rank=4 --seeds 6 -np 2 --metric accuracy --higher-is-better --margin 0.5 "$@" \
    -- python examples/torch_mnist.py --epochs 2 --batch-size 16 --seed '{seed}' --model "${MODEL:-cnn}"
