"""What people read: findings in words, tables, figures, one self-contained page.

Everything here reads records and measures nothing. Studies may not enter: a study brings its own `Section`.
"""
