"""Whole numbers as a data set: what there is to know about each row can be computed."""

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

import xmckit
from xmckit.data.model import carve_validation

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DIVISORS = (2, 3, 4, 5, 7, 9, 10, 11, 25)


def in_words(number):
    """A number from 0 to 9999 in English."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = f" {in_words(number % size)}" if number % size else ""
    return f"{in_words(number // size)} {name}{rest}"


def labels_of(number):
    """The names of the labels of a number."""
    divided = [f"divisible by {divisor}" for divisor in DIVISORS if number % divisor == 0]
    return [*divided, f"ends in {number % 10}", f"{len(str(number))} digits"]


class NumbersDataset(xmckit.Configured):
    """The numbers from 1 on, in words, with their divisors, last digits and lengths for labels."""

    class Params(xmckit.Params):
        most: int = Field(400, ge=20, le=9999, description="The largest number.")
        test_share: float = Field(0.25, gt=0, lt=1, description="The share of the numbers that is kept for the test.")

    def fingerprint(self, *, context):
        return {"which numbers are for the test": str(context.seed)}

    def read(self, *, context):
        numbers = range(1, self.params.most + 1)
        found = [labels_of(number) for number in numbers]
        names = sorted({name for row in found for name in row})
        place = {name: label for label, name in enumerate(names)}
        labels = [sorted(place[name] for name in row) for row in found]
        ends = np.cumsum([0, *map(len, labels)])
        Y = csr_matrix((np.ones(ends[-1], np.float32), np.concatenate(labels), ends), shape=(len(found), len(names)))
        rows = xmckit.Split(X=None, Y=Y, texts=[in_words(number) for number in numbers], names=list(map(str, numbers)))
        train, test = carve_validation(rows, self.params.test_share, context.rng("test numbers"))
        return xmckit.Dataset("numbers", train, test, label_names=names)
