"""Train one of the models for so many steps, without data: MODEL STEPS. What predict_accuracy.py forecasts."""

import sys

import torch
from _models import Training

import hvdlite.torch as hvd


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    training = Training(sys.argv[1]).distributed("none")
    for _ in range(int(sys.argv[2])):
        training()


if __name__ == "__main__":
    main()
