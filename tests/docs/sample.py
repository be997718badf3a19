#!/usr/bin/env python3
"""Draws texts to read with fresh eyes: usage: tests/docs/sample.py SEED [N]

The same seed draws the same N texts (60) from the same tree, as many of each kind as of any other. A line in brackets
is what a reader sees next to the text: the head of its table, the words before its list, the code below its comment or
around its string.
"""

import random
import sys

from texts import KINDS, all_texts


def main():
    seed, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    drawn = random.Random(seed)
    by_kind = {kind: [] for kind in KINDS}
    for text in all_texts():
        by_kind[text.kind].append(text)
    for kind in KINDS:
        drawn.shuffle(by_kind[kind])
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        if by_kind[kind]:
            text = by_kind[kind].pop()
            context = f"     [{text.context}]\n" if text.context else ""
            print(f"{index + 1:3}. {kind}, {text.path}:{text.line}\n{context}     {text.text}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main()
