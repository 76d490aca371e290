"""Divide real handwritten digits among three hospitals, as a stand-in for their own images."""

import numpy as np

from kedge.data.datasets import load

train = load("digits").train
x, y = train.x.numpy(), train.y.numpy()
chance = np.random.default_rng(0)
# The share of each class that a hospital has: A sees mostly low digits, B mostly high ones, C a few of all.
shares = np.array([[0.75] * 5 + [0.1] * 5, [0.1] * 5 + [0.75] * 5, [0.15] * 10])
owner = np.array([chance.choice(3, p=shares[:, label]) for label in y])
for number, name in enumerate(["a", "b", "c"]):
    mine = np.flatnonzero(owner == number)
    held_out, own = np.split(chance.permutation(mine), [len(mine) // 5])
    for kind, rows in (("train", own), ("validation", held_out)):
        names = np.array([f"digit {n}" for n in range(10)])
        np.savez(f"hospital-{name}-{kind}.npz", x=x[rows], y=y[rows], label_names=names)
    share = 100 * len(mine) / len(y)
    print(f"hospital {name} ({share:.0f} %): {len(own)} images to train on, {len(held_out)} to validate")
