"""What a component offers of the optional protocols."""

from __future__ import annotations

import numpy as np
import pytest

from xmckit import protocols
from xmckit.kinds import KINDS, load_protocol
from xmckit.protocols import needs_index, offers

OPTIONAL = sorted({name for kind in KINDS.values() for name in kind.optional})


class Head:
    """Offers one pass, facts, candidates and a flag, and needs an index unless it says otherwise."""

    needs = frozenset({"shortlist"})
    index_optional = True
    probabilistic = False

    def rank_and_label(self, X, k):
        return np.zeros((len(X), k)), None

    def facts(self, truth):
        return {}

    def candidates(self, X):
        return None


class Proxy:
    """Forwards everything, as a wrapper for logging or for another process does."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("wrap", [lambda head: head, Proxy, lambda head: Proxy(Proxy(head))])
def test_a_proxy_offers_what_its_head_offers(wrap):
    head = wrap(Head())
    offered = {name for name in OPTIONAL if offers(head, load_protocol(name))}
    assert offered == {
        "HeadWithFacts", "IndexOptionalHead", "OnePassHead", "ProbabilisticHead", "ShortlistHead", "SupportsFacts",
    }  # fmt: skip
    assert not needs_index(head)


def test_every_member_counts():
    class Tree:
        clusters = None

    assert not offers(Tree(), protocols.ClusteredIndex)
    Tree.label_of = None
    assert offers(Tree(), protocols.ClusteredIndex)
    assert offers(Tree, protocols.ClusteredIndex)  # a class too


def test_a_method_that_is_none_is_not_offered():
    class Ranks(Head):
        rank_and_label = None

    assert not offers(Ranks(), protocols.OnePassHead)
    assert not offers(Proxy(Ranks()), protocols.OnePassHead)
