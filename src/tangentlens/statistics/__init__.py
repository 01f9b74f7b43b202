"""Numbers in, intervals and verdicts out: jackknife, bootstrap, groups, corrections, shapes, words for a ratio.

Every estimate is an `Interval`: `value`, `ci_low`, `ci_high`, and `ci_over`, the source of variation its 95% interval
covers. Models, gradients and files may not enter here.
"""
