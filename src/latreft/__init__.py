"""Low-rank latent adversarial training of language-model classifiers, reproduced as a library.

Axes are named once and kept everywhere: ``B`` examples in a batch, ``T`` tokens of a sequence, ``L`` positions of the
defended suffix window, ``D`` hidden width, ``R`` rank of the edit, ``K`` PGD steps, ``C`` candidates of a discrete
attack, ``N`` attacked tokens, ``V`` vocabulary entries. Layers are counted from 1: layer ``l`` is the output of the
``l``-th decoder block and layer 0 is the token embedding.
"""

__version__ = "0.1.0"
