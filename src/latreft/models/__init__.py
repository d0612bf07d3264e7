"""Decoder language models as two-class classifiers: families, loading, tokenisation, the classifier itself."""
