"""Plug HyperParallel into MindFormers 1.9.0: a YAML job that has a block `hyperparallel:` trains by a schedule line.

Importing this package registers classes under new names and changes nothing else; jobs without the block run as before.
"""
