"""A head with an asymmetric loss, and whole numbers to try it on. A plugin for xmckit."""

import xmckit


@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component(
        "asymmetric",
        "xmckit_asymmetric.head:AsymmetricHead",
        summary="One vector and bias per label; easy negatives count little, hopeless ones not at all.",
        api_version=1,
    )


@xmckit.hookimpl
def xmckit_datasets():
    yield xmckit.Component(
        "numbers",
        "xmckit_asymmetric.numbers:NumbersDataset",
        summary="Whole numbers in words, labelled with what divides them and how they end.",
        api_version=1,
    )
