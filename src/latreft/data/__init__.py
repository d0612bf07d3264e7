"""Data sets: fetched or generated, cleaned, split and written once as parquet files with a manifest.

``settings`` says what a data set is, ``sources`` reads it, ``cleaning`` drops what may not be used, ``lengths`` counts
tokens, ``splits`` draws the splits, ``prepare`` writes them and ``prepared`` reads them back.
"""
